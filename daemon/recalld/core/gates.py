"""Who is served: the reasons not to recall for a prompt, and not to keep a turn. None means go on."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

from recalld.core.scope import Scope
from recalld.wire.messages import Ctx

_CONTROL = re.compile(
    r"(?:HEARTBEAT_OK|NO_REPLY|\[SILENT\])\W*|/[a-z][a-z0-9_-]{1,31}(?:\s[^\n]{0,80})?", re.IGNORECASE
)
_OWN_TRIGGERS = frozenset({"", "user", "manual"})


# Reasons that lie in who and where: no later signal of the same turn changes them.
PLACE_REASONS = frozenset(
    {"unknown_scope", "agent", "internal", "subagent", "cron", "trigger", "provenance", "chat_type"}
)


class GateSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`agents`: those served; empty means all. `min_chars`: shorter prompts are not worth a search."""

    recall: bool = True
    capture: bool = True
    agents: tuple[str, ...] = ()
    chat_types: tuple[str, ...] = ("direct",)
    min_chars: Annotated[int, Meta(ge=0, le=1_000)] = 5


def place_gate(scope: Scope | None, ctx: Ctx, settings: GateSettings) -> str | None:
    """The reasons that lie in who and where, the same for recall and for capture."""
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
    return None


def recall_gate(scope: Scope | None, ctx: Ctx, prompt: str, settings: GateSettings) -> str | None:
    """Why this prompt gets no memories. `prompt` is cleaned."""
    if not settings.recall:
        return "disabled"
    if (reason := place_gate(scope, ctx, settings)) is not None:
        return reason
    if not prompt:
        return "empty"
    if is_control(prompt):
        return "control_text"
    return "too_short" if len(prompt) < settings.min_chars else None


def capture_gate(scope: Scope | None, ctx: Ctx, user: str, assistant: str, settings: GateSettings) -> str | None:
    """Why this turn becomes no memory. Both texts are cleaned."""
    if not settings.capture:
        return "disabled"
    if (reason := place_gate(scope, ctx, settings)) is not None:
        return reason
    if not user and not assistant:
        return "empty"
    return "control_text" if is_control(user) or (not user and is_control(assistant)) else None


def is_control(text: str) -> bool:
    """Whether the whole text is a command to the host, or its answer to itself."""
    return _CONTROL.fullmatch(text.strip()) is not None
