"""Events of any host to the few facts a turn is made of. The text in a signal is cleaned already: nothing else is kept."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct

from recalld.core.clean import clean
from recalld.core.scope import Scope
from recalld.wire.messages import Ctx, Event


class Kind(StrEnum):
    """What a signal means for a turn."""

    MESSAGE = "message"  # the user said something; no run yet
    PROMPT = "prompt"  # a run starts: the question asked before the prompt is built
    INPUT = "input"  # a run starts: the prompt as the model gets it
    OUTPUT = "output"
    END = "end"
    TOOL = "tool"
    BOUNDARY = "boundary"


KINDS: dict[str, Kind] = {
    "message_received": Kind.MESSAGE,
    "before_prompt_build": Kind.PROMPT,
    "llm_input": Kind.INPUT,
    "llm_output": Kind.OUTPUT,
    "agent_end": Kind.END,
    "before_tool_call": Kind.TOOL,
    "after_tool_call": Kind.TOOL,
    "session_end": Kind.BOUNDARY,
    "before_reset": Kind.BOUNDARY,
    "before_compaction": Kind.BOUNDARY,
    "gateway_stop": Kind.BOUNDARY,
}


class Signal(Struct, omit_defaults=True):
    """One event as the turn machine takes it, and as the journal keeps it until its turn is stored.

    `off`: memory was turned off here when it was heard.
    `at_ms` is when the daemon received it (Unix ms): the machine's only clock. `ts` is when it happened, by the host's.
    """

    kind: Kind
    type: str
    at_ms: int
    ts: int
    src: str
    seq: int | None = None
    agent: str | None = None
    namespace: str | None = None
    session: str | None = None
    run_id: str | None = None
    user: str = ""
    assistant: str = ""
    failure: str | None = None
    transcript: str | None = None
    ctx: Ctx | None = None
    off: bool = False


def distil(event: Event, scope: Scope | None, at_ms: int) -> Signal | None:
    """The signal in an event; None where the event means nothing to a turn or has no scope to belong to."""
    kind = KINDS.get(event.type)
    if kind is None:
        return None
    if event.type == "gateway_stop":
        return Signal(kind=kind, type=event.type, at_ms=at_ms, ts=event.ts, src=event.src, seq=event.seq)
    if scope is None or scope.session is None:
        return None
    signal = Signal(
        kind=kind,
        type=event.type,
        at_ms=at_ms,
        ts=event.ts,
        src=event.src,
        seq=event.seq,
        agent=scope.agent,
        namespace=scope.namespace,
        session=scope.session,
        run_id=event.ctx.run_id or _string(event.event, "runId"),
        ctx=event.ctx,
    )
    _READERS.get(kind, _read_nothing)(signal, event.event)
    return signal


def _read_message(signal: Signal, payload: dict[str, Any]) -> None:
    signal.user = clean(text_of(payload.get("content")))


def _read_prompt(signal: Signal, payload: dict[str, Any]) -> None:
    signal.user = clean(text_of(payload.get("prompt")))


def _read_output(signal: Signal, payload: dict[str, Any]) -> None:
    texts = payload.get("assistantTexts")
    if isinstance(texts, list):
        signal.assistant = clean("\n".join(t for t in texts if isinstance(t, str)))
    last = payload.get("lastAssistant")
    if isinstance(last, dict):
        signal.assistant = signal.assistant or clean(text_of(last.get("content")))
        signal.failure = _failure_of(last)


def _read_end(signal: Signal, payload: dict[str, Any]) -> None:
    messages = payload.get("messages")
    user, answers = last_turn(messages if isinstance(messages, list) else [])
    signal.user = clean(text_of(user.get("content"))) if user else ""
    signal.assistant = clean("\n".join(filter(None, (text_of(a.get("content")) for a in answers))))
    if answers:
        signal.failure = _failure_of(answers[-1])
    if payload.get("success") is False and signal.failure is None:
        signal.failure = "failed" if payload.get("error") else "aborted"


def _read_boundary(signal: Signal, payload: dict[str, Any]) -> None:
    signal.transcript = _string(payload, "sessionFile")


def _read_nothing(signal: Signal, payload: dict[str, Any]) -> None:
    pass


_READERS = {
    Kind.MESSAGE: _read_message,
    Kind.PROMPT: _read_prompt,
    Kind.INPUT: _read_prompt,
    Kind.OUTPUT: _read_output,
    Kind.END: _read_end,
    Kind.BOUNDARY: _read_boundary,
}


def last_turn(messages: list[Any]) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The last user message of a history, and the assistant messages after it."""
    answers: list[dict[str, Any]] = []
    for message in reversed(messages):
        if not isinstance(message, dict):
            continue
        role = message.get("role")
        if role == "user":
            return message, answers[::-1]
        if role == "assistant":
            answers.append(message)
    return None, answers[::-1]


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or the text blocks of a list."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    blocks = (b for b in content if isinstance(b, dict) and b.get("type") == "text")
    return "\n".join(b["text"] for b in blocks if isinstance(b.get("text"), str))


def _failure_of(message: dict[str, Any]) -> str | None:
    if message.get("stopReason") == "aborted":
        return "aborted"
    return "failed" if message.get("stopReason") == "error" or message.get("errorMessage") else None


def _string(payload: dict[str, Any], name: str) -> str | None:
    value = payload.get(name)
    return value if isinstance(value, str) and 0 < len(value) <= 4096 else None
