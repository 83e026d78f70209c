"""The turn machine: signals of one session in, closed turns out. Pure; time is an argument (Unix ms).

`Session.receive`, `next_timer`, `handle_timer` and `next_close` are the whole surface of one session; `TurnBook` holds
the sessions of a daemon. Timers are stamped with their own time, so the result does not depend on how often one looks.
"""

from __future__ import annotations

import heapq
from collections import deque

from msgspec.structs import replace

from recalld.core.signals import Kind, Signal
from recalld.core.turn import TRANSITIONS, Input, State, Turn, TurnSettings

CLOSED_MAX = 32  # closed turns one session remembers, to know a late signal's turn; older ones are known by the store


class Session:
    """The turns of one (namespace, session)."""

    def __init__(self, settings: TurnSettings) -> None:
        self.settings = settings
        self.current: Turn | None = None
        self.queued: Turn | None = None
        self.closed: deque[Turn] = deque()
        self._closes: deque[Turn] = deque()
        self.opened = 0

    # -- input

    def receive(self, signal: Signal, now_ms: int) -> bool:
        """Take one signal. Timers due before `now_ms` must have been handled.

        Returns whether a turn that is yet to be stored holds it.
        """
        if signal.kind is Kind.BOUNDARY:
            self.boundary(signal, now_ms)
            return False
        turn = self._turn_for(signal, now_ms)
        late = turn.is_late(signal)
        turn.enrich(signal)
        self._apply(turn, Input.LATE if late else _INPUTS[signal.kind], now_ms)
        if turn.state is State.CLOSED and turn.journal:  # a sign of life of a turn that is stored already
            turn.journal = []
            return False
        return True

    def boundary(self, signal: Signal, now_ms: int) -> None:
        """Close what is open, unless it began after the boundary was sent."""
        for turn in (self.current, self.queued):
            if turn is None or turn.began_after(signal):
                continue
            turn.transcript = signal.transcript or turn.transcript
            self._close(turn, signal.type, now_ms)

    def close_all(self, closed_by: str, now_ms: int, src: str | None = None) -> None:
        for turn in (self.current, self.queued):
            if turn is not None and src in (None, turn.src):
                self._close(turn, closed_by, now_ms)

    # -- time

    def next_timer(self) -> int | None:
        """When `handle_timer` is due (Unix ms), or None."""
        return min((t.timer_ms for t in self._turns()), default=None)

    def handle_timer(self, now_ms: int) -> None:
        """Do what is due at or before `now_ms`, in order, each stamped with its own time."""
        while True:
            due = min(self._turns(), key=lambda t: t.timer_ms, default=None)
            if due is None or due.timer_ms > now_ms:
                return
            self._close(due, _CLOSED_BY[due.state], due.timer_ms)

    # -- output

    def next_close(self) -> Turn | None:
        """A closed turn to be stored (a copy), or None."""
        return self._closes.popleft() if self._closes else None

    @property
    def open_turns(self) -> int:
        return sum(1 for t in (self.current, self.queued) if t is not None)

    # -- decisions

    def _turns(self) -> list[Turn]:
        return [t for t in (self.current, self.queued, *self.closed) if t is not None]

    def _turn_for(self, signal: Signal, now_ms: int) -> Turn:
        known = self._by_run(signal.run_id)
        if known is not None:
            if signal.kind in (Kind.PROMPT, Kind.INPUT):
                self._fold(known)
            return known
        current = self.current
        if current is not None and self._resumes(current, signal):
            return current
        if signal.kind is Kind.MESSAGE:
            return self._turn_for_message(signal, now_ms)
        if signal.kind in (Kind.PROMPT, Kind.INPUT):
            if current is not None and self._continues(current, signal):
                return current
            return self._start(signal, now_ms)
        if current is not None and not current.began_after(signal) and (not signal.run_id or not current.runs):
            return current
        if not signal.run_id:
            older = next((t for t in reversed(self.closed) if not t.began_after(signal)), None)
            if (
                older is not None
                and (current is None or current.began_after(signal))
                and signal.kind is not Kind.OUTPUT
            ):
                return older
        return self._start(signal, now_ms)

    def _by_run(self, run_id: str | None) -> Turn | None:
        return next((t for t in reversed(self._turns()) if run_id in t.runs), None) if run_id else None

    def _fold(self, known: Turn) -> None:
        """A message that waits for its run, when the run turns out to be one that is known with these very words, is the
        turn told a second time (by a publisher that starts over) and no turn of its own."""
        for turn in (self.current, self.queued):
            if turn is None or turn is known or turn.prompted or turn.runs or turn.user != known.user:
                continue
            known.journal += turn.journal
            known.off = known.off or turn.off
            self.opened -= 1
            if turn is self.current:
                self.current = None
            else:
                self.queued = None

    def _turn_for_message(self, signal: Signal, now_ms: int) -> Turn:
        current = self.current
        overtaken = [t for t in self._turns() if t.prompted and t.began_after(signal)]
        if overtaken:  # the run began without it; of later runs it is none of theirs
            return min(overtaken, key=lambda t: t.first_ts)
        if current is None or current.state is not State.OPEN:
            return self._start(signal, now_ms)
        if not current.prompted and not current.assistant:
            return current  # said in two messages before the run began
        if self.queued is None:
            self.queued = self._new(signal)
        return self.queued

    def _resumes(self, current: Turn, signal: Signal) -> bool:
        """Whether a run of the gateway's own takes up the turn that is open: one that was cut off by a crash."""
        internal = signal.ctx is not None and signal.ctx.provenance == "internal_system"
        return internal and current.state is State.OPEN and not current.assistant

    def _continues(self, current: Turn, signal: Signal) -> bool:
        """Whether a run's start belongs to the turn that is open."""
        if current.assistant or current.state is not State.OPEN:
            return False
        if current.runs and signal.run_id:
            return False
        return not (current.prompted and signal.kind is Kind.PROMPT and signal.user and signal.user != current.user)

    def _start(self, signal: Signal, now_ms: int) -> Turn:
        if self.current is not None:
            self._close(self.current, "next_start", now_ms)
        if self.queued is not None and signal.kind is not Kind.MESSAGE:
            self.current, self.queued = self.queued, None
        else:
            self.current = self._new(signal)
        return self.current

    def _new(self, signal: Signal) -> Turn:
        self.opened += 1
        assert signal.agent is not None
        assert signal.namespace is not None
        assert signal.session is not None
        return Turn(
            agent=signal.agent,
            namespace=signal.namespace,
            session=signal.session,
            src=signal.src,
            opened_ms=signal.at_ms,
            first_ts=signal.ts,
            last_ts=signal.ts,
            timer_ms=signal.at_ms + self.settings.idle_ms,
        )

    # -- changes

    def _apply(self, turn: Turn, what: Input, now_ms: int) -> None:
        before = turn.state
        turn.state = TRANSITIONS[before, what]
        if before is State.CLOSED and turn.state is not State.CLOSED:
            self._reopen(turn, now_ms)
        if turn.state is State.OPEN:
            turn.timer_ms = now_ms + self.settings.idle_ms
        elif turn.state is State.QUIET and (what is not Input.LATE or before is not State.QUIET):
            turn.timer_ms = now_ms + self.settings.quiet_ms
        elif turn.state is State.GRACE:
            answered = bool(turn.assistant) or turn.failure == "aborted"
            turn.timer_ms = now_ms + (self.settings.grace_ms if answered else self.settings.quiet_ms)

    def _reopen(self, turn: Turn, now_ms: int) -> None:
        self.closed.remove(turn)
        if self.current is None:
            self.current = turn
        else:  # another turn is open meanwhile: this one is handed out again at once
            turn.state = State.OPEN
            self._close(turn, turn.closed_by, now_ms)

    def _close(self, turn: Turn, closed_by: str, now_ms: int) -> None:
        what = Input.BOUNDARY if closed_by not in _CLOSED_BY.values() else Input.TIMER
        turn.state = TRANSITIONS[turn.state, what]
        if turn.state is State.GONE:
            self.closed.remove(turn)
            return
        turn.closed_by, turn.closed_ms = closed_by, now_ms
        turn.revision += 1
        turn.timer_ms = now_ms + self.settings.linger_ms
        self._closes.append(replace(turn, runs=list(turn.runs), seqs=dict(turn.seqs)))
        turn.journal = []
        if turn is self.current:
            self.current = None
        if turn is self.queued:
            self.queued = None
        self.closed.append(turn)
        if len(self.closed) > CLOSED_MAX:
            self.closed.popleft()


_INPUTS = {
    Kind.MESSAGE: Input.START,
    Kind.PROMPT: Input.START,
    Kind.INPUT: Input.START,
    Kind.OUTPUT: Input.OUTPUT,
    Kind.END: Input.END,
    Kind.TOOL: Input.TOOL,
}
_CLOSED_BY = {State.OPEN: "idle", State.QUIET: "quiet", State.GRACE: "grace", State.CLOSED: "forgotten"}


class TurnBook:
    """The sessions of one daemon: the same surface as `Session`, for all of them."""

    def __init__(self, settings: TurnSettings) -> None:
        self.settings = settings
        self._sessions: dict[tuple[str, str], Session] = {}
        self._timers: list[tuple[int, tuple[str, str]]] = []
        self._closes: deque[Turn] = deque()
        self._opened: dict[str, int] = {}

    def receive(self, signal: Signal, now_ms: int) -> bool:
        """Take one signal. Returns whether a turn holds it; what no turn holds need not be kept in the journal."""
        if signal.session is None:  # gateway_stop: every open turn of its publisher
            for key in list(self._sessions):
                self._sessions[key].close_all(signal.type, now_ms, src=signal.src)
                self._settle(key)
            return False
        assert signal.namespace is not None
        assert signal.agent is not None
        key = (signal.namespace, signal.session)
        session = self._sessions.get(key)
        if session is None:
            if signal.kind is Kind.BOUNDARY:
                return False
            session = self._sessions[key] = Session(self.settings)
        before = session.opened
        held = session.receive(signal, now_ms)
        self._opened[signal.agent] = self._opened.get(signal.agent, 0) + session.opened - before
        self._settle(key)
        return held

    def current(self, key: tuple[str, str]) -> Turn | None:
        """The open turn of a (namespace, session)."""
        session = self._sessions.get(key)
        return session.current if session is not None else None

    def next_timer(self) -> int | None:
        while self._timers:
            at, key = self._timers[0]
            session = self._sessions.get(key)
            if session is not None and session.next_timer() == at:
                return at
            heapq.heappop(self._timers)
        return None

    def handle_timer(self, now_ms: int) -> None:
        while (at := self.next_timer()) is not None and at <= now_ms:
            _, key = heapq.heappop(self._timers)
            self._sessions[key].handle_timer(at)
            self._settle(key)

    def next_close(self) -> Turn | None:
        return self._closes.popleft() if self._closes else None

    def close_all(self, closed_by: str, now_ms: int) -> int:
        """Close every open turn. Returns how many there were."""
        count = self.open_turns
        for key in list(self._sessions):
            self._sessions[key].close_all(closed_by, now_ms)
            self._settle(key)
        return count

    def take_opened(self) -> dict[str, int]:
        """Turns opened by agent since this was last asked."""
        opened, self._opened = self._opened, {}
        return opened

    @property
    def open_turns(self) -> int:
        return sum(s.open_turns for s in self._sessions.values())

    def _settle(self, key: tuple[str, str]) -> None:
        session = self._sessions[key]
        while (turn := session.next_close()) is not None:
            self._closes.append(turn)
        at = session.next_timer()
        if at is None:
            del self._sessions[key]
        else:
            heapq.heappush(self._timers, (at, key))
