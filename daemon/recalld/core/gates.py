"""Who is served: the reasons not to recall for a prompt, and not to keep a turn. None means go on."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated

from msgspec import Meta, Struct

from recalld.core.query import QUESTION_MARKS, Query
from recalld.core.scope import Scope
from recalld.wire.messages import Ctx

_CONTROL = re.compile(
    r"(?:HEARTBEAT_OK|NO_REPLY|\[SILENT\])\W*|/[a-z][a-z0-9_-]{1,31}(?:\s[^\n]{0,80})?", re.IGNORECASE
)
_OWN_TRIGGERS = frozenset({"", "user", "manual"})


# Reasons that lie in who and where: no later signal of the same turn changes them.
PLACE_REASONS = frozenset(
    {
        "unknown_scope",
        "agent",
        "internal",
        "subagent",
        "cron",
        "trigger",
        "provenance",
        "chat_type",
        "chat_denied",
        "chat_not_allowed",
    }
)
TOGGLED_OFF = "toggled_off"

Pattern = Annotated[str, Meta(min_length=1, max_length=512)]


class GateSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`agents`: those served; empty means all. `chats_deny`, `chats_allow`: ids of chats, in any case, with a thread's
    suffix for that thread alone; deny wins, and where any are allowed, a chat whose id is unknown is not. `min_chars`:
    shorter prompts are not worth a search. `control_patterns`: regular expressions; a text that one of them matches from
    its first character to its last is for the host.
    """

    recall: bool = True
    capture: bool = True
    agents: tuple[str, ...] = ()
    chat_types: tuple[str, ...] = ("direct",)
    chats_allow: tuple[str, ...] = ()
    chats_deny: tuple[str, ...] = ()
    min_chars: Annotated[int, Meta(ge=0, le=1_000)] = 5
    control_patterns: Annotated[tuple[Pattern, ...], Meta(max_length=64)] = ()


def place_gate(scope: Scope | None, ctx: Ctx, settings: GateSettings, *, toggled_off: bool) -> str | None:
    """The reasons that lie in who and where, and in a person's toggle: the same for recall and for capture."""
    if scope is None or scope.session is None:
        return "unknown_scope"
    if settings.agents and scope.agent not in settings.agents:
        return "agent"
    if scope.internal:
        return "internal"
    if scope.subagent:
        return "subagent"
    if scope.cron:
        return "cron"
    if (ctx.trigger or "") not in _OWN_TRIGGERS:
        return "trigger"
    if ctx.provenance not in (None, "", "external_user"):
        return "provenance"
    if scope.chat_type not in settings.chat_types:
        return "chat_type"
    if settings.chats_deny and not _folded(settings.chats_deny).isdisjoint(scope.chats):
        return "chat_denied"
    if settings.chats_allow and _folded(settings.chats_allow).isdisjoint(scope.chats):
        return "chat_not_allowed"
    return TOGGLED_OFF if toggled_off else None


def recall_gate(
    scope: Scope | None, ctx: Ctx, prompt: str, settings: GateSettings, *, toggled_off: bool = False
) -> str | None:
    """Why this prompt gets no memories, but for its length. `prompt` is cleaned."""
    if not settings.recall:
        return "disabled"
    if (reason := place_gate(scope, ctx, settings, toggled_off=toggled_off)) is not None:
        return reason
    if not prompt:
        return "empty"
    return "control_text" if is_control(prompt, settings) else None


def length_gate(query: Query, settings: GateSettings) -> str | None:
    """A short prompt is not worth a search, but for a question about what was said just now."""
    if len(query.text) >= settings.min_chars or (query.context and any(mark in query.text for mark in QUESTION_MARKS)):
        return None
    return "too_short"


def capture_gate(
    scope: Scope | None, ctx: Ctx, user: str, assistant: str, settings: GateSettings, *, toggled_off: bool = False
) -> str | None:
    """Why this turn becomes no memory. Both texts are cleaned; `toggled_off`: when it was heard."""
    if not settings.capture:
        return "disabled"
    if (reason := place_gate(scope, ctx, settings, toggled_off=toggled_off)) is not None:
        return reason
    if not user and not assistant:
        return "empty"
    return "control_text" if is_control(user or assistant, settings) else None


def is_control(text: str, settings: GateSettings) -> bool:
    """Whether the whole text is a command to the host, or its answer to itself."""
    text = text.strip()
    if _CONTROL.fullmatch(text) is not None:
        return True
    return any(p.fullmatch(text) is not None for p in _compiled(settings.control_patterns))


@lru_cache(maxsize=4)
def _compiled(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(p) for p in patterns)


@lru_cache(maxsize=4)
def _folded(chats: tuple[str, ...]) -> frozenset[str]:
    return frozenset(chat.strip().casefold() for chat in chats)
