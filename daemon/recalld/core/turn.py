"""One turn: its states and the table of what they answer to, and what is known of it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from recalld.core.signals import Kind, Signal
from recalld.wire.messages import Ctx


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

    `journal` lists the (src, seq) that the journal keeps until this turn is stored. `off`: a part of it was heard while
    memory was turned off.
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
    off: bool = False
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

    def began_after(self, signal: Signal) -> bool:
        """Whether this turn began after the signal was sent. Of a question, which has no seq, only the time tells."""
        if signal.seq is not None and signal.src in self.seqs:
            return signal.seq < self.seqs[signal.src][0]
        return signal.src == self.src and signal.ts < self.first_ts

    def enrich(self, signal: Signal) -> None:
        """Take what a signal knows better."""
        self.first_ts, self.last_ts = min(self.first_ts, signal.ts), max(self.last_ts, signal.ts)
        if signal.run_id and signal.run_id not in self.runs:
            self.runs.append(signal.run_id)
        if signal.seq is not None:
            first, last = self.seqs.get(signal.src, (signal.seq, signal.seq))
            self.seqs[signal.src] = (min(first, signal.seq), max(last, signal.seq))
            self.journal.append((signal.src, signal.seq))
        if signal.ctx is not None:
            self.ctx = _merged(self.ctx, signal.ctx, provenance=not self.prompted)
        self.prompted = self.prompted or signal.kind in (Kind.PROMPT, Kind.INPUT)
        rank = _USER_RANK.get(signal.kind, 9)
        if signal.user and signal.kind is Kind.MESSAGE and self.user_rank == rank:
            self.user = f"{self.user}\n{signal.user}"
        elif signal.user and rank < self.user_rank:
            self.user, self.user_rank = signal.user, rank
        rank = _ANSWER_RANK.get(signal.kind, 9)
        if signal.assistant and rank <= self.assistant_rank:
            self.assistant, self.assistant_rank = signal.assistant, rank
        if signal.failure or signal.assistant:
            self.failure = signal.failure
        self.attempts += signal.kind is Kind.END
        self.off = self.off or signal.off


def _merged(old: Ctx, new: Ctx, *, provenance: bool) -> Ctx:
    """What is known stays; what was unknown is filled in. Who wrote the prompt is decided by the turn's first start."""
    merged = Ctx(**{f: getattr(old, f) or getattr(new, f) for f in Ctx.__struct_fields__})
    return merged if provenance else replace(merged, provenance=old.provenance)
