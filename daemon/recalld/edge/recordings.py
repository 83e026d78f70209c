"""Recordings to protocol events: hook payloads of an OpenClaw gateway, and conversation files.

`read` opens the file; all else is pure. What is made here is what a gateway's plugin would emit: the client adds `src`,
`seq` and `id`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from recalld.core.signals import last_turn
from recalld.errors import FolderError
from recalld.wire.messages import KEPT_TYPES, QUESTION

TURN_MS = 20_000  # a conversation file tells when a session began, not when each turn did
ANSWER_MS = 5_000


class Recorded(Struct, frozen=True):
    """One event: `ts` is when it happened (Unix ms), `life` numbers the publishers' lives in the file from 0."""

    type: str
    ts: int
    ctx: dict[str, str]
    event: dict[str, Any]
    life: int = 0


class Said(Struct):
    """One turn of a conversation file. An empty text: that side said nothing."""

    run_id: str
    user: str = ""
    assistant: str = ""


class Sitting(Struct):
    """One session of a conversation file; without `started_at` (ISO 8601) it follows the one before it."""

    session_id: str
    turns: list[Said]
    started_at: str | None = None


class Asked(Struct):
    """A question about a conversation; `evidence` are the run ids of the turns that answer it."""

    question: str
    evidence: list[str] = field(default_factory=list)


class Conversation(Struct):
    """A conversation file: one JSON object."""

    id: str
    user: str
    assistant: str
    sessions: list[Sitting]
    questions: list[Asked] = field(default_factory=list)

    @property
    def agent(self) -> str:
        """The file's id as an agent's: letters, digits, `_` and `-`, at most 64."""
        return re.sub(r"[^A-Za-z0-9_-]+", "-", self.id).strip("-_")[:64] or "conversation"


class _Record(Struct):
    """A line of an OpenClaw recording; `iid` names the instance of the plugin that saw it."""

    t: int
    hook: str
    iid: str = ""
    event: dict[str, Any] | None = None
    ctx: dict[str, Any] | None = None


def read(path: Path, agent: str | None = None) -> list[Recorded]:
    """The events of a recording or a conversation file, in order of time; which of the two it is shows.

    `agent` plays everything as that agent. Raises FolderError naming the file and the line, or the place in it.
    """
    text = _text(path)
    try:
        first = msgspec.json.decode(text.lstrip().partition("\n")[0])
    except msgspec.DecodeError:  # an object that is written over many lines, or nothing of ours
        first = None
    if isinstance(first, dict) and "sessions" not in first:
        events = openclaw_events(_records(path, text))
    else:
        events = conversation_events(_conversation(path, text))
    return [_as_agent(e, agent) for e in events] if agent else list(events)


def conversation(path: Path) -> Conversation:
    """A conversation file. Raises FolderError."""
    return _conversation(path, _text(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise FolderError(f"the recording {path} is not UTF-8 text (byte {e.start}): {_REMEDY}") from None
    except OSError as e:
        raise FolderError(f"the recording {path} cannot be read: {e.strerror}; name a file that is there") from None


_REMEDY = "give an OpenClaw recording (one JSON object with `t` and `hook` a line) or a conversation file"


def _records(path: Path, text: str) -> Iterator[_Record]:
    decode = msgspec.json.Decoder(_Record, strict=False).decode
    for number, line in enumerate(text.split("\n"), 1):  # splitlines would cut a string at U+2028
        if not line.strip():
            continue
        try:
            yield decode(line)
        except msgspec.DecodeError as e:
            raise FolderError(f"the recording {path}, line {number}: {e}; {_REMEDY}") from None


def _conversation(path: Path, text: str) -> Conversation:
    try:
        found = msgspec.json.decode(text, type=Conversation)
        for number, sitting in enumerate(found.sessions):
            if sitting.started_at is not None:
                _unix_ms(sitting.started_at, number)
    except msgspec.ValidationError as e:
        raise FolderError(f"the recording {path}: {e}; {_REMEDY}") from None
    except msgspec.DecodeError as e:
        byte = re.search(r"byte (\d+)", str(e))
        line = text.encode()[: int(byte[1])].count(b"\n") + 1 if byte else text.count("\n") + 1
        raise FolderError(f"the recording {path}, line {line}: {e}; {_REMEDY}") from None
    return found


# -- OpenClaw

_CTX: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("agent_id", ("agentId",)),
    ("session_key", ("sessionKey",)),
    ("session_id", ("sessionId",)),
    ("run_id", ("runId",)),
    ("workspace_dir", ("workspaceDir",)),
    ("trigger", ("trigger",)),
    ("channel", ("channel", "messageProvider", "channelId")),
    ("chat_type", ("chatType",)),
    ("chat_id", ("chatId",)),
    ("sender_id", ("senderId",)),
    ("sender_name", ("senderName",)),
)
_IN_EVENT = frozenset({"sessionKey", "sessionId", "runId"})  # some hooks have them in the payload only

# What the daemon reads of a payload. An llm_input is 160 kB with its tools and its history, and 50 bytes of prompt.
_FIELDS: dict[str, tuple[str, ...]] = {
    QUESTION: ("prompt", "messages"),
    "message_received": ("content",),
    "llm_input": ("prompt",),
    "llm_output": ("assistantTexts", "lastAssistant"),
    "agent_end": ("messages", "success", "error"),
    "session_end": ("sessionFile",),
    "before_reset": ("sessionFile",),
    "before_compaction": ("sessionFile",),
}


def openclaw_events(records: Iterable[_Record]) -> Iterator[Recorded]:
    """The protocol's events among recorded hooks; hooks that are none of them (`before_agent_start`, …) are left out.

    Two instances of the plugin share one publisher, so their records are put in one order: that of time, and of the
    file where times are equal.
    """
    wrote: dict[tuple[str | None, str], str] = {}
    for life, record in _lives(sorted(records, key=lambda r: r.t)):
        if record.hook not in KEPT_TYPES and record.hook != QUESTION:
            continue
        host, payload = record.ctx or {}, record.event or {}
        ctx = _ctx(host, payload)
        if (run := ctx.get("run_id")) is not None:
            # only the hooks before the prompt is built tell who wrote it; the plugin remembers it for the run
            if (kind := _string(_map(host.get("inputProvenance")).get("kind"))) is not None:
                wrote[ctx.get("session_key"), run] = kind
            if (kind := wrote.get((ctx.get("session_key"), run))) is not None:
                ctx["provenance"] = kind
        yield Recorded(record.hook, record.t, ctx, _payload(record.hook, payload), life)


def _lives(records: Iterable[_Record]) -> Iterator[tuple[int, _Record]]:
    """A gateway's start begins a new publisher; so does, after a gateway's stop, an instance that was not part of it:
    a one-shot run of the host's command line."""
    life, stopped, instances = 0, False, set[str]()
    for record in records:
        if (record.hook == "gateway_start" and instances) or (stopped and record.iid not in instances):
            life, stopped, instances = life + 1, False, set()
        instances.add(record.iid)
        stopped = stopped or record.hook == "gateway_stop"
        yield life, record


def _ctx(host: dict[str, Any], payload: dict[str, Any]) -> dict[str, str]:
    ctx = {}
    for ours, theirs in _CTX:
        candidates = [*(host.get(t) for t in theirs), *(payload.get(t) for t in theirs if t in _IN_EVENT)]
        value = next(filter(None, map(_string, candidates)), None)
        if value is not None:
            ctx[ours] = value
    return ctx


def _payload(hook: str, payload: dict[str, Any]) -> dict[str, Any]:
    event = {name: payload[name] for name in _FIELDS.get(hook, ()) if name in payload}
    if isinstance(event.get("messages"), list):  # the whole session so far, where one turn of it is read
        user, answers = last_turn(event["messages"])
        event["messages"] = [*([user] if user else []), *answers]
    return event


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= 512 else None


# -- conversation files


def conversation_events(told: Conversation) -> Iterator[Recorded]:
    """The events of a gateway that held this conversation. Only when a session began is known; the rest is spaced
    TURN_MS apart."""
    agent, ts = told.agent, 0
    for number, sitting in enumerate(told.sessions):
        if sitting.started_at is not None:
            ts = max(ts, _unix_ms(sitting.started_at, number))
        ctx = {
            "agent_id": agent,
            "session_key": f"agent:{agent}:{sitting.session_id}",
            "session_id": sitting.session_id,
            "trigger": "user",
            "chat_type": "direct",
            "sender_name": told.user,
            "agent_name": told.assistant,
        }
        yield Recorded("session_start", ts, ctx, {})
        for said in sitting.turns:
            yield from _turn_events(said, ts, {**ctx, "run_id": said.run_id})
            ts += TURN_MS
        yield Recorded("session_end", ts, ctx, {})


def _turn_events(said: Said, ts: int, ctx: dict[str, str]) -> Iterator[Recorded]:
    messages = [
        {"role": role, "content": text} for role, text in (("user", said.user), ("assistant", said.assistant)) if text
    ]
    texts = [said.assistant] if said.assistant else []
    yield Recorded("llm_input", ts, ctx, {"prompt": said.user})
    yield Recorded("llm_output", ts + ANSWER_MS, ctx, {"assistantTexts": texts})
    yield Recorded("agent_end", ts + ANSWER_MS, ctx, {"messages": messages, "success": True})


def _unix_ms(started_at: str, number: int) -> int:
    """A time without a zone is UTC. Raises msgspec.ValidationError."""
    try:
        when = datetime.fromisoformat(started_at)
    except ValueError:
        raise msgspec.ValidationError(
            f"Expected a time in ISO 8601, got {started_at[:40]!r} - at `$.sessions[{number}].started_at`"
        ) from None
    return max(0, int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000))


def _as_agent(recorded: Recorded, agent: str) -> Recorded:
    """The event as if it were that agent's: its session key names the agent too."""
    ctx = dict(recorded.ctx)
    if not ctx.keys() & {"agent_id", "session_key"}:
        return recorded
    ctx["agent_id"] = agent
    parts = ctx.get("session_key", "").split(":", 2)
    if parts[0] == "agent" and len(parts) == 3:
        ctx["session_key"] = f"agent:{agent}:{parts[2]}"
    return msgspec.structs.replace(recorded, ctx=ctx)
