"""Every message of protocol version 1 as a msgspec Struct.

Bounds live in the types, so that decoding checks them and the JSON schemas in `protocol/schemas` are exported from
them. The prose is `protocol/README.md`. Unknown fields are ignored by rule: hosts differ and change.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from recalld.wire.errors import Code

PROTOCOL_VERSION = 1
SUPPORTED_VERSIONS = (1,)

MESSAGE_BYTES_MAX = 4 * 1024 * 1024  # the largest event measured on a real gateway: 160 kB; the rest is for history
UNACKED_MAX = 8192  # events one publisher may have unacknowledged; the same as the sockets' own queue
TTL_MS_DEFAULT = 100
TTL_MS_MAX = 60_000
LIST_ITEMS_MAX = 100
RECALLS_MAX = 50  # in one reply: with prompts of full length they still fit a message
NESTING_MAX = 64  # levels of `event` and `params`; hosts use about ten, and the interpreter's stack ends near 1000
TEXT_CHARS_MAX = 16_384
QUERY_CHARS_MAX = 8_192

Id = Annotated[str, Meta(min_length=1, max_length=128, description="Unique within its sender's life.")]
Src = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$(?!\n)",  # Python's `$` alone would let a last newline pass
        description="One publisher's life: name and a part new at each start.",
    ),
]
Seq = Annotated[int, Meta(ge=1, le=2**53 - 1)]
Millis = Annotated[int, Meta(ge=0, le=2**53 - 1, description="Unix time in milliseconds.")]
Ttl = Annotated[int, Meta(ge=1, le=TTL_MS_MAX, description="The asker's budget in milliseconds.")]
Name = Annotated[str, Meta(max_length=512)]
Text = Annotated[str, Meta(min_length=1, max_length=TEXT_CHARS_MAX)]
Decay = Literal["permanent", "durable", "normal", "short", "ephemeral"]
Share = Annotated[float, Meta(ge=0, le=1)]
MemoryId = Annotated[str, Meta(pattern=r"^m[1-9][0-9]{0,18}$(?!\n)")]
RecallId = Annotated[str, Meta(pattern=r"^r[1-9][0-9]{0,18}$(?!\n)")]

KEPT_TYPES = frozenset(
    {
        "session_start",
        "session_end",
        "before_reset",
        "llm_input",
        "llm_output",
        "agent_end",
        "before_compaction",
        "after_compaction",
        "message_received",
        "before_tool_call",
        "after_tool_call",
        "subagent_spawned",
        "subagent_ended",
        "gateway_start",
        "gateway_stop",
    }
)
QUESTION = "before_prompt_build"
HELLO = "hello"
EVENT_TYPES = KEPT_TYPES | {QUESTION, HELLO}


class Ctx(Struct, omit_defaults=True):
    """Who and where, as the host knows it. The only source of scope: no argument of a tool can change it."""

    agent_id: Name | None = None
    session_key: Name | None = None
    session_id: Name | None = None
    run_id: Name | None = None
    workspace_dir: Annotated[str, Meta(max_length=4096)] | None = None
    trigger: Name | None = None
    channel: Name | None = None
    chat_type: Name | None = None
    chat_id: Name | None = None
    sender_id: Name | None = None
    sender_name: Name | None = None
    agent_name: Name | None = None
    provenance: Name | None = None


class Event(Struct, omit_defaults=True):
    """What a gateway publishes on `events`, and what `publish` carries over rpc."""

    v: int
    type: Annotated[str, Meta(min_length=1, max_length=64)]
    id: Id
    src: Src
    ts: Millis
    seq: Seq | None = None
    ttl_ms: Ttl | None = None
    ctx: Ctx = msgspec.field(default_factory=Ctx)
    event: dict[str, Any] = msgspec.field(default_factory=dict)


class Hello(Struct, omit_defaults=True):
    """The `event` of a `hello`."""

    client: Name | None = None
    oldest: Seq | None = None
    lost: Annotated[int, Meta(ge=0)] = 0


class DaemonInfo(Struct):
    name: str
    version: str
    instance: str


class Limits(Struct):
    message_bytes_max: int = MESSAGE_BYTES_MAX
    unacked_max: int = UNACKED_MAX
    ttl_ms_default: int = TTL_MS_DEFAULT
    ttl_ms_max: int = TTL_MS_MAX
    text_chars_max: int = TEXT_CHARS_MAX
    query_chars_max: int = QUERY_CHARS_MAX


class Welcome(Struct):
    v: int
    type: Literal["welcome"]
    id: Id
    re: Id
    src: Src
    ts: Millis
    protocol: int
    daemon: DaemonInfo
    upto: Annotated[int, Meta(ge=0)]
    highest: Annotated[int, Meta(ge=0)]
    limits: Limits


class Memory(Struct, omit_defaults=True):
    """A memory as it is shown. `score` is absolute: it does not depend on what else was found."""

    id: MemoryId
    kind: Literal["turn", "fact", "note"]
    text: str
    created_ms: Millis
    category: str | None = None
    score: float | None = None
    lexical: float | None = None
    vector: float | None = None
    session_key: str | None = None
    run_ids: list[str] = msgspec.field(default_factory=list)
    turn_id: int | None = None
    via: str | None = None


Status = Literal["ok", "partial", "empty", "skipped", "error"]
Placement = Literal["prepend", "append", "system"]


class ContextBody(Struct, omit_defaults=True):
    """The answer to a question, the same on the bus and over rpc."""

    status: Status
    elapsed_ms: float
    text: str = ""
    tokens: int = 0
    reason: str | None = None
    memories: list[Memory] = msgspec.field(default_factory=list)
    placement: Placement = "prepend"


class Context(ContextBody, kw_only=True, omit_defaults=True):
    v: int
    type: Literal["context"]
    id: Id
    re: Id
    src: Src
    ts: Millis


class Ack(Struct):
    v: int
    type: Literal["ack"]
    src: Src
    ts: Millis
    upto: Annotated[int, Meta(ge=0)]
    highest: Annotated[int, Meta(ge=0)]


class CapturedTurn(Struct, omit_defaults=True):
    id: int
    session: str
    closed_by: str
    run_ids: list[str] = msgspec.field(default_factory=list)


class Captured(Struct, omit_defaults=True):
    v: int
    type: Literal["captured"]
    id: Id
    src: Src
    ts: Millis
    turn: CapturedTurn
    outcome: Literal["captured", "skipped"]
    revision: int = 0
    reason: str | None = None
    memories: list[str] = msgspec.field(default_factory=list)


class ErrorBody(Struct, omit_defaults=True):
    code: Code
    message: str
    remedy: str
    supported: list[int] | UnsetType = UNSET


class Error(ErrorBody, kw_only=True, omit_defaults=True):
    v: int
    type: Literal["error"]
    id: Id
    src: Src
    ts: Millis
    re: Id | None = None


class Request(Struct, omit_defaults=True):
    """What a client sends to `rpc`."""

    v: int
    id: Id
    op: Annotated[str, Meta(min_length=1, max_length=64)]
    ctx: Ctx = msgspec.field(default_factory=Ctx)
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    ttl_ms: Ttl | None = None
    token: Annotated[str, Meta(max_length=256)] | None = None


class Reply(Struct, omit_defaults=True):
    """What `rpc` answers: `result` where `ok`, else `error`."""

    v: int
    re: Id | None
    ok: bool
    result: dict[str, Any] | None = None
    error: ErrorBody | None = None


ANSWERS: dict[str, type[Struct]] = {
    "welcome": Welcome,
    "context": Context,
    "ack": Ack,
    "captured": Captured,
    "error": Error,
}
