"""The operations of `rpc`: each one's params and result, and the table of all schemas."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from recalld.wire.messages import (
    ANSWERS,
    LIST_ITEMS_MAX,
    QUERY_CHARS_MAX,
    RECALLS_MAX,
    ContextBody,
    DaemonInfo,
    Decay,
    Event,
    Hello,
    Memory,
    MemoryId,
    Millis,
    RecallId,
    Reply,
    Request,
    Share,
    Status,
    Text,
)


class SearchParams(Struct):
    query: Annotated[str, Meta(min_length=1, max_length=QUERY_CHARS_MAX)]
    limit: Annotated[int, Meta(ge=1, le=LIST_ITEMS_MAX)] = 10


class SearchResult(Struct):
    memories: list[Memory]
    elapsed_ms: float
    status: Status


class GetParams(Struct):
    id: MemoryId


class Turn(Struct, omit_defaults=True):
    """The turn a memory came from."""

    id: int
    session: str
    run_ids: list[str]
    opened_ms: Millis
    closed_ms: Millis
    status: str
    closed_by: str
    user: str = ""
    assistant: str = ""
    session_id: str | None = None
    transcript: str | None = None


class Attributes(Struct, omit_defaults=True):
    """What besides relevance decides a memory's place, and whether it is given."""

    importance: Share
    confidence: Share
    decay: Decay
    pinned: bool = False
    expires_ms: int | None = None
    superseded_by: MemoryId | None = None
    entity: str | None = None
    source: str | None = None


class GetResult(Struct, omit_defaults=True):
    memory: Memory
    attributes: Attributes | None = None
    turn: Turn | None = None
    uses: int = 0
    last_used_ms: Millis | None = None


class StoreParams(Struct):
    text: Text
    category: Annotated[str, Meta(min_length=1, max_length=64)] = "note"
    importance: Share | None = None
    decay: Decay | None = None
    pinned: bool | None = None
    entity: Annotated[str, Meta(min_length=1, max_length=128)] | None = None


class StoreResult(Struct):
    id: MemoryId
    stored: bool


class ForgetParams(Struct):
    id: MemoryId


class ForgetResult(Struct):
    forgotten: list[MemoryId]


class StatusParams(Struct):
    pass


class PublishParams(Struct):
    events: Annotated[list[Event], Meta(min_length=1, max_length=LIST_ITEMS_MAX)]


class PublishResult(Struct):
    upto: dict[str, int]


class RecallParams(Struct):
    prompt: str
    messages: list[dict[str, Any]] = msgspec.field(default_factory=list)


class DrainParams(Struct):
    pass


class DrainResult(Struct):
    closed: int


Switch = Literal["on", "off"]


class ToggleParams(Struct):
    """`status` changes nothing. The session is that of `ctx`."""

    state: Literal["on", "off", "status"]
    scope: Literal["session", "global"] = "session"


class ToggleResult(Struct, omit_defaults=True):
    """What holds now. Recall and capture work where both are on; `session` is left out where `ctx` names none."""

    all: Switch = msgspec.field(name="global")
    session: Switch | None = None


class ExplainParams(Struct):
    id: RecallId | None = None
    last: Annotated[int, Meta(ge=1, le=RECALLS_MAX)] = 1


class Candidate(Struct, omit_defaults=True):
    """A memory that was found for a prompt, and what became of it. No `text`: it does not exist any more."""

    id: MemoryId
    score: float
    parts: dict[str, float]
    verdict: str
    via: str = ""
    kind: str | None = None
    text: str | None = None
    created_ms: Millis | None = None


class ExplainedRecall(Struct, omit_defaults=True):
    """How one answer came about. `id` is left out of one that is not in the log."""

    at_ms: Millis
    session: str
    query: str
    status: Status
    source: str
    elapsed_ms: float
    settings: dict[str, Any]
    stages: dict[str, float]
    id: RecallId | None = None
    run_id: str | None = None
    reason: str | None = None
    tokens: int = 0
    context: str = ""
    candidates: list[Candidate] = msgspec.field(default_factory=list)


class ExplainResult(Struct):
    recalls: list[ExplainedRecall]


class ReplayRecallParams(Struct):
    id: RecallId | None = None
    settings: Annotated[dict[str, Any], Meta(max_length=LIST_ITEMS_MAX)] = msgspec.field(default_factory=dict)


class ReplayRecallResult(Struct):
    then: ExplainedRecall
    now: ExplainedRecall
    entered: list[MemoryId]
    left: list[MemoryId]


class ReindexParams(Struct):
    what: Literal["all", "words", "vectors"] = "all"


class ReindexResult(Struct):
    seconds: float


class StatusResult(Struct):
    """Counts since the store was made (`turns`, `memories`) or since the daemon started (all else). `vectors_waiting`:
    memories that have yet to get a vector of the present embedder; they are found by their words."""

    daemon: DaemonInfo
    uptime_s: float
    data_dir: str
    events: dict[str, int]
    ignored: dict[str, int]
    errors: dict[str, int]
    agents: dict[str, dict[str, Any]]
    recalls: dict[str, int]
    latency_ms: dict[str, float]
    late: int
    open_turns: int
    faults: list[str]
    recalls_cached: int = 0
    recalls_shared: int = 0
    recalls_unlogged: int = 0
    vectors_waiting: int = 0


OPERATIONS: dict[str, tuple[type[Struct], type[Struct]]] = {
    "search": (SearchParams, SearchResult),
    "get": (GetParams, GetResult),
    "store": (StoreParams, StoreResult),
    "forget": (ForgetParams, ForgetResult),
    "status": (StatusParams, StatusResult),
    "publish": (PublishParams, PublishResult),
    "recall": (RecallParams, ContextBody),
    "explain": (ExplainParams, ExplainResult),
    "replay_recall": (ReplayRecallParams, ReplayRecallResult),
    "drain": (DrainParams, DrainResult),
    "reindex": (ReindexParams, ReindexResult),
    "toggle": (ToggleParams, ToggleResult),
}

SCHEMAS: dict[str, type[Struct]] = {
    "event": Event,
    "hello": Hello,
    **ANSWERS,
    "request": Request,
    "reply": Reply,
    **{f"{op}.params": pair[0] for op, pair in OPERATIONS.items()},
    **{f"{op}.result": pair[1] for op, pair in OPERATIONS.items()},
}
