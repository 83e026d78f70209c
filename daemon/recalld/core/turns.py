"""The turn machine: signals of one session in, closed turns out. Pure; time is an argument (Unix ms).

`Session.receive`, `next_timer`, `handle_timer` and `next_close` are the whole surface of one session; `TurnBook` holds
the sessions of a daemon. Timers are stamped with their own time, so the result does not depend on how often one looks.
"""

from __future__ import annotations

import heapq
from collections import deque
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from recalld.core.signals import Kind, Signal
from recalld.wire.messages import Ctx

CLOSED_MAX = 32  # closed turns one session remembers, to know a late signal's turn; older ones are known by the store


class State(StrEnum):
    OPEN = "open"  # started; the answer is awaited
    QUIET = "quiet"  # an answer was given; closes after quiet_ms without another
    GRACE = "grace"  # the run ended; closes after grace_ms
    CLOSED = "closed"  # handed out; remembered for linger_ms in case a late signal enriches it
    GONE = "gone"


class Input(StrEnum):
    START = "start"
    OUTPUT = "output"
    END = "end"
    TOOL = "tool"
    LATE = (
        "late"  # a signal older than what the turn has seen from the same publisher: it enriches, it does not restart
    )
    BOUNDARY = "boundary"
    TIMER = "timer"


# The whole behaviour of one turn. A pair that is not here is a defect and raises KeyError.
TRANSITIONS: dict[tuple[State, Input], State] = {
    (State.OPEN, Input.START): State.OPEN,
    (State.OPEN, Input.OUTPUT): State.QUIET,
    (State.OPEN, Input.END): State.GRACE,
    (State.OPEN, Input.TOOL): State.OPEN,
    (State.OPEN, Input.LATE): State.OPEN,
    (State.OPEN, Input.BOUNDARY): State.CLOSED,
    (State.OPEN, Input.TIMER): State.CLOSED,
    (State.QUIET, Input.START): State.OPEN,
    (State.QUIET, Input.OUTPUT): State.QUIET,
    (State.QUIET, Input.END): State.GRACE,
    (State.QUIET, Input.TOOL): State.OPEN,
    (State.QUIET, Input.LATE): State.QUIET,
    (State.QUIET, Input.BOUNDARY): State.CLOSED,
    (State.QUIET, Input.TIMER): State.CLOSED,
    (State.GRACE, Input.START): State.OPEN,
    (State.GRACE, Input.OUTPUT): State.GRACE,
    (State.GRACE, Input.END): State.GRACE,
    (State.GRACE, Input.TOOL): State.GRACE,
    (State.GRACE, Input.LATE): State.GRACE,
    (State.GRACE, Input.BOUNDARY): State.CLOSED,
    (State.GRACE, Input.TIMER): State.CLOSED,
    (State.CLOSED, Input.START): State.OPEN,
    (State.CLOSED, Input.OUTPUT): State.QUIET,
    (State.CLOSED, Input.END): State.GRACE,
    (State.CLOSED, Input.TOOL): State.CLOSED,
    (State.CLOSED, Input.LATE): State.GRACE,
    (State.CLOSED, Input.BOUNDARY): State.CLOSED,
    (State.CLOSED, Input.TIMER): State.GONE,
}


Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]


class TurnSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """When a turn is over (protocol/README.md, section 11)."""

    quiet_ms: Milliseconds = 5_000
    grace_ms: Milliseconds = 1_000
    idle_ms: Milliseconds = 1_800_000
    linger_ms: Milliseconds = 600_000


# Whose version of the user's words is cleanest, and of the answer; lower is better (OpenClaw, measured: llm_input
# carries injected context, agent_end the whole turn including text between tool calls).
_USER_RANK = {Kind.MESSAGE: 0, Kind.PROMPT: 1, Kind.END: 2, Kind.INPUT: 3}
_ANSWER_RANK = {Kind.END: 0, Kind.OUTPUT: 1}


class Turn(Struct):
    """What is known of one turn. `first_ts` and `last_ts` are the host's clock, all else is ours.

    `journal` lists the (src, seq) that the journal keeps until this turn is stored.
    """

    agent: str
    namespace: str
    session: str
    src: str
    opened_ms: int
    first_ts: int
    last_ts: int
    state: State = State.OPEN
    timer_ms: int = 0
    closed_ms: int = 0
    closed_by: str = ""
    revision: int = -1
    runs: list[str] = field(default_factory=list)
    user: str = ""
    user_rank: int = 9
    prompted: bool = False
    assistant: str = ""
    assistant_rank: int = 9
    failure: str | None = None
    attempts: int = 0
    transcript: str | None = None
    ctx: Ctx = field(default_factory=Ctx)
    journal: list[tuple[str, int]] = field(default_factory=list)
    seqs: dict[str, tuple[int, int]] = field(default_factory=dict)  # per src: first and last seq seen

    @property
    def status(self) -> str:
        """`ok`, `failed`, `aborted`, or `unanswered`."""
        return self.failure or ("ok" if self.assistant else "unanswered")

    @property
    def key(self) -> str:
        """Names the turn within its session, the same after a replay."""
        return self.runs[0] if self.runs else f"@{self.opened_ms}"

    def is_late(self, signal: Signal) -> bool:
        return signal.seq is not None and signal.src in self.seqs and signal.seq < self.seqs[signal.src][1]

    def is_before(self, signal: Signal) -> bool:
        """Whether the signal was sent before this turn began. Of a question, which has no seq, only the time tells."""
        if signal.seq is not None and signal.src in self.seqs:
            return signal.seq < self.seqs[signal.src][0]
        return signal.src == self.src and signal.ts < self.first_ts


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
        self._enrich(turn, signal)
        self._apply(turn, Input.LATE if late else _INPUTS[signal.kind], now_ms)
        if turn.state is State.CLOSED and turn.journal:  # a sign of life of a turn that is stored already
            turn.journal = []
            return False
        return True

    def boundary(self, signal: Signal, now_ms: int) -> None:
        """Close what is open, unless it began after the boundary was sent."""
        for turn in (self.current, self.queued):
            if turn is None or turn.is_before(signal):
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
        if signal.kind is Kind.MESSAGE:
            return self._turn_for_message(signal, now_ms)
        if signal.kind in (Kind.PROMPT, Kind.INPUT):
            if current is not None and self._continues(current, signal):
                return current
            return self._start(signal, now_ms)
        if current is not None and not current.is_before(signal) and (not signal.run_id or not current.runs):
            return current
        if not signal.run_id:
            older = next((t for t in reversed(self.closed) if not t.is_before(signal)), None)
            if older is not None and (current is None or current.is_before(signal)) and signal.kind is not Kind.OUTPUT:
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
            self.opened -= 1
            if turn is self.current:
                self.current = None
            else:
                self.queued = None

    def _turn_for_message(self, signal: Signal, now_ms: int) -> Turn:
        current = self.current
        overtaken = [t for t in self._turns() if t.prompted and t.is_before(signal)]
        if overtaken:  # the run began without it; of later runs it is none of theirs
            return min(overtaken, key=lambda t: t.first_ts)
        if current is None or current.state is not State.OPEN:
            return self._start(signal, now_ms)
        if not current.prompted and not current.assistant:
            return current  # said in two messages before the run began
        if self.queued is None:
            self.queued = self._new(signal)
        return self.queued

    def _continues(self, current: Turn, signal: Signal) -> bool:
        """Whether a run's start belongs to the turn that is open."""
        if current.assistant or current.state is not State.OPEN:
            return False
        if signal.ctx is not None and signal.ctx.provenance == "internal_system":
            return True
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

    def _enrich(self, turn: Turn, signal: Signal) -> None:
        turn.first_ts, turn.last_ts = min(turn.first_ts, signal.ts), max(turn.last_ts, signal.ts)
        if signal.run_id and signal.run_id not in turn.runs:
            turn.runs.append(signal.run_id)
        if signal.seq is not None:
            first, last = turn.seqs.get(signal.src, (signal.seq, signal.seq))
            turn.seqs[signal.src] = (min(first, signal.seq), max(last, signal.seq))
            turn.journal.append((signal.src, signal.seq))
        if signal.ctx is not None:
            turn.ctx = _merged(turn.ctx, signal.ctx, provenance=not turn.prompted)
        turn.prompted = turn.prompted or signal.kind in (Kind.PROMPT, Kind.INPUT)
        rank = _USER_RANK.get(signal.kind, 9)
        if signal.user and signal.kind is Kind.MESSAGE and turn.user_rank == rank:
            turn.user = f"{turn.user}\n{signal.user}"
        elif signal.user and rank < turn.user_rank:
            turn.user, turn.user_rank = signal.user, rank
        rank = _ANSWER_RANK.get(signal.kind, 9)
        if signal.assistant and rank <= turn.assistant_rank:
            turn.assistant, turn.assistant_rank = signal.assistant, rank
        if signal.failure or signal.assistant:
            turn.failure = signal.failure
        turn.attempts += signal.kind is Kind.END

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


def _merged(old: Ctx, new: Ctx, *, provenance: bool) -> Ctx:
    """What is known stays; what was unknown is filled in. Who wrote the prompt is decided by the turn's first start."""
    merged = Ctx(**{f: getattr(old, f) or getattr(new, f) for f in Ctx.__struct_fields__})
    return merged if provenance else replace(merged, provenance=old.provenance)


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
