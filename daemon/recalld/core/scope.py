"""Whose memories: the namespace and session of a message, from the host's `ctx` alone."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from recalld.wire.messages import Ctx

_AGENT_KEY = re.compile(r"^agent:([A-Za-z0-9][A-Za-z0-9_-]{0,63})(?::|$)")
_GROUP_PARTS = {"group": "group", "channel": "channel", "room": "group"}
_INTERNAL = re.compile(
    r"^(?:agent:[^:]+:)?(?:harness:|internal-session-effects:|dreaming-narrative-)|:(?:memory-capture|active-memory):"
)
# agent:<id>:[<channel>:[<account>:]]<kind>:<chat>; a chat's own id may hold colons (Matrix)
_CHAT_KEY = re.compile(r"^agent:[^:]+(?::[^:]+){0,2}?:(?:direct|dm|group|channel|room):(.+)")
_THREAD = re.compile(r":(?:thread|topic):.+")


class Scope(Struct, frozen=True):
    """A resolved place: `namespace` isolates memories, `session` isolates turns.

    `chats`: the chat's id, and with its thread where it has one, in lower case as most hosts write their keys; empty where
    it is not known.
    """

    agent: str
    namespace: str
    session: str | None
    chat_type: str
    subagent: bool
    cron: bool
    internal: bool
    chats: tuple[str, ...] = ()


def agent_of(ctx: Ctx) -> str | None:
    """The agent's id. A session key `agent:<id>:…` wins over `agent_id`, which some hosts fill with a constant."""
    if ctx.session_key and (found := _AGENT_KEY.match(ctx.session_key)):
        return found[1]
    return ctx.agent_id or None


def scope_of(ctx: Ctx, shared: Mapping[str, str]) -> Scope | None:
    """The scope, or None where the agent is unknown. `shared` maps an agent to the namespace it shares with others."""
    agent = agent_of(ctx)
    if agent is None:
        return None
    key = ctx.session_key or ""
    parts = key.split(":")
    return Scope(
        agent=agent,
        namespace=shared.get(agent, agent),
        session=ctx.session_key or ctx.session_id or None,
        chat_type=ctx.chat_type or next((_GROUP_PARTS[p] for p in parts[2:] if p in _GROUP_PARTS), "direct"),
        subagent="subagent" in parts,
        cron="cron" in parts,
        internal=_INTERNAL.search(key) is not None,
        chats=_chats(ctx.chat_id or "", key),
    )


def _chats(chat_id: str, key: str) -> tuple[str, ...]:
    found = _CHAT_KEY.match(key)
    named, of_key = chat_id.strip().casefold(), found[1].casefold() if found else ""
    thread = _THREAD.search(named) or _THREAD.search(of_key)
    chat = _THREAD.sub("", named or of_key)
    if not chat:
        return ()
    return (chat, chat + thread[0]) if thread else (chat,)
