"""What was said lately in each session: for prompts that mean nothing without it, where the host sends no history."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from recalld.core.clean import shorten
from recalld.core.query import Said
from recalld.core.turn import Turn

SESSIONS_MAX = 1_024  # the last ones heard of; with the bounds below, at most 12 MB
TURNS_MAX = 6
PART_CHARS_MAX = 1_000  # the most that the settings can ask for

Key = tuple[str, str]  # namespace, session


class Recent:
    """Belongs to the event loop. In memory only: after a restart, sessions begin anew."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[Key, OrderedDict[int, tuple[str, str]]] = OrderedDict()

    def remember(self, turn: Turn) -> None:
        """A turn that closed; a later version of it replaces the one before."""
        key = (turn.namespace, turn.session)
        turns = self._sessions.setdefault(key, OrderedDict())
        self._sessions.move_to_end(key)
        turns[turn.opened_ms] = (shorten(turn.user, PART_CHARS_MAX), shorten(turn.assistant, PART_CHARS_MAX))
        if len(turns) > TURNS_MAX:
            turns.popitem(last=False)
        if len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)

    def forget(self, key: Key) -> None:
        """The session began anew."""
        self._sessions.pop(key, None)

    def said(self, key: Key, current: Turn | None) -> Iterator[Said]:
        """Newest first: the turn that is not closed yet, then those that are."""
        turns = [(current.user, current.assistant)] if current is not None else []
        turns += reversed(self._sessions.get(key, OrderedDict()).values())
        for user, assistant in turns:
            if assistant:
                yield Said("assistant", assistant)
            if user:
                yield Said("user", user)
