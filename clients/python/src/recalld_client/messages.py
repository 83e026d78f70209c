"""Messages of the protocol as this client writes them, and what it hands to its caller."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

VERSION = 1
MESSAGE_BYTES_MAX = 4 * 1024 * 1024
NOT_KEPT = frozenset({"hello", "before_prompt_build"})

Map = dict[str, Any]


class RecalldError(Exception):
    """The daemon refused an operation. `code` is one of the protocol's `E_*`, `remedy` says what to do about it."""

    def __init__(self, code: str, message: str, remedy: str = "") -> None:
        super().__init__(f"{code}: {message}" + (f" ({remedy})" if remedy else ""))
        self.code = code
        self.message = message
        self.remedy = remedy


class RecalldUnavailable(RecalldError):
    """No daemon answered: none is there, it went away, or it took too long. The operation may have been done."""

    def __init__(self, message: str) -> None:
        super().__init__("E_UNAVAILABLE", message, "see that recalld is running, then try again")


@dataclass(frozen=True, slots=True)
class Recall:
    """The answer to a question. True when there is text to put before the prompt."""

    status: str
    """The daemon's `ok`, `partial`, `empty`, `skipped` or `error`; `unavailable` when no daemon is connected, `timeout`
    when none answered in time. What a later version of the protocol adds is passed on."""
    text: str = ""
    """The block for the prompt, ready to be used as it is. Empty unless `ok` or `partial`."""
    memories: list[Map] = field(default_factory=list)
    """What the block holds, best first."""
    reason: str | None = None
    """Why it is not `ok`: a gate, what was late, or an `E_*` code."""
    elapsed_ms: float = 0.0
    """Milliseconds: the daemon's own figure where it answered, else the time waited here."""
    tokens: int = 0
    """Estimated tokens of `text`."""
    placement: str = "prepend"
    """Where the person wants the text: `prepend` or `append` to the prompt, or `system`, in the system prompt."""

    def __bool__(self) -> bool:
        return bool(self.text)


def recall_of(answer: Map) -> Recall:
    """The payload of a `context`. Fields of the wrong type are read as left out."""
    status, text, memories = answer.get("status"), answer.get("text"), answer.get("memories")
    reason, elapsed_ms, tokens = answer.get("reason"), answer.get("elapsed_ms"), answer.get("tokens")
    placement = answer.get("placement")
    return Recall(
        status=status if isinstance(status, str) else "error",
        text=text if isinstance(text, str) and status in ("ok", "partial") else "",
        memories=memories if isinstance(memories, list) else [],
        reason=reason if isinstance(reason, str) else None,
        elapsed_ms=float(elapsed_ms) if isinstance(elapsed_ms, (int, float)) else 0.0,
        tokens=tokens if isinstance(tokens, int) else 0,
        placement=placement if isinstance(placement, str) else "prepend",
    )


# Characters stay themselves: `\ud800` would be a half surrogate that strict parsers refuse, and escapes are longer.
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, skipkeys=True, separators=(",", ":"), default=str)


def encode(value: object) -> bytes:
    """Compact JSON in UTF-8 that any parser takes: NaN and infinities become null, what JSON does not know becomes its
    `str`, keys that are no strings are dropped. Raises what the value itself raises, and ValueError or RecursionError
    when it contains itself or is nested too deep."""
    try:
        text = _encoder.encode(value)
    except ValueError:
        lenient = json.dumps(value, skipkeys=True, default=str)
        text = _encoder.encode(json.loads(lenient, parse_constant=lambda _: None))
    return text.encode("utf-8", "replace")


def decode(payload: bytes) -> Map | None:
    """A payload's JSON object; None when it is anything else."""
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def last_turn(messages: Sequence[Any]) -> list[Any]:
    """The last message of a user and what follows it: the daemon reads no more of a history."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if isinstance(message, Mapping) and message.get("role") == "user":
            return list(messages[index:])
    return list(messages)


def event_body(type: str, event: Mapping[str, Any], ctx: Mapping[str, Any]) -> bytes:
    """The part of a kept event's envelope that is known before its seq: `"type":…}` without the opening brace.

    Raises ValueError for a type that is not kept or not 1 to 64 characters, and what `encode` raises.
    """
    if not 1 <= len(type) <= 64 or type in NOT_KEPT:
        raise ValueError(f"{type!r} is not an event that can be emitted")
    event = dict(event)
    if isinstance(event.get("messages"), (list, tuple)):
        event["messages"] = last_turn(event["messages"])
    return encode({"type": type, "ctx": dict(ctx), "event": event})[1:]
