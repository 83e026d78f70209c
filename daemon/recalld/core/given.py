"""What each session was given lately, so that it is not given again while the model still sees it. Pure.

A turn is a run: the host may ask for one run more than once (an attempt that is tried again, a hook that fires twice),
and what the run itself was given is not held against it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Set

from msgspec import Struct, field

SESSIONS_MAX = 1_024  # the least recently asked is forgotten first; at the defaults 5 kB each


class Shown(Struct, frozen=True):
    """A memory as it was shown. `kept`: which of its sentences; None: all of them."""

    id: int
    turn_id: int | None
    kind: str
    kept: Set[int] | None


class Recent(Struct, frozen=True):
    """What a session was given in its last turns: memories by id (`Shown.kept` of all times together), and the turns
    whose own memory was shown whole. `first`: nothing was asked in it before."""

    memories: Mapping[int, Set[int] | None] = field(default_factory=dict)
    turns: Set[int] = frozenset()
    first: bool = True


class Session(Struct, eq=False):
    """Runs in the order in which they were first asked for, with what each was given."""

    transcript: str | None = None
    runs: dict[str, tuple[Shown, ...]] = field(default_factory=dict)

    def recent(self, run_id: str, turns: int) -> Recent:
        """What was given in the `turns` turns before this run."""
        before = [shown for run, shown in self.runs.items() if run != run_id]
        memories: dict[int, Set[int] | None] = {}
        whole: set[int] = set()
        for shown in (s for given in before[len(before) - min(turns, len(before)) :] for s in given):
            known = memories.get(shown.id, frozenset())
            memories[shown.id] = None if shown.kept is None or known is None else known | shown.kept
            if shown.kept is None and shown.kind == "turn" and shown.turn_id is not None:
                whole.add(shown.turn_id)
        return Recent(memories, whole, not before)

    def gave(self, run_id: str, shown: tuple[Shown, ...], turns: int) -> None:
        """Note what a run was given. No more is remembered than `recent` can be asked for, and that this is not the first."""
        self.runs[run_id] = shown
        while len(self.runs) > max(turns, 1) + 1:
            del self.runs[next(iter(self.runs))]


class Given:
    """The sessions by key. To be used under one lock; a Session that was forgotten takes what it is told in vain."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[Hashable, Session] = OrderedDict()

    def session(self, key: Hashable, transcript: str | None) -> Session:
        """The session, new where it is not known or where its transcript is another one now."""
        session = self._sessions.get(key)
        if session is None or (transcript and session.transcript and transcript != session.transcript):
            session = self._sessions[key] = Session()
            if len(self._sessions) > SESSIONS_MAX:
                self._sessions.popitem(last=False)
        session.transcript = transcript or session.transcript
        self._sessions.move_to_end(key)
        return session

    def forget(self, key: Hashable) -> None:
        """The model does not see it any more."""
        self._sessions.pop(key, None)

    def __len__(self) -> int:
        return len(self._sessions)
