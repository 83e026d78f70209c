"""When to leave a server alone that does not answer. Pure; time is an argument (monotonic seconds).

A request begins with a deadline, and one that is not heard of by then has failed, whatever its thread still waits for.
After `failures_max` failures in a row nothing is asked for `pause_s`; then one request is let through, to see.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    CLOSED = "closed"  # requests go through
    OPEN = "open"  # none does
    PROBING = "probing"  # one is under way, to see


class Input(Enum):
    TRIPPED = "tripped"  # the last failure that was tolerated
    PROBE = "probe"  # somebody asks, and the pause is over
    SUCCESS = "success"
    FAILURE = "failure"


TRANSITIONS = {
    (State.CLOSED, Input.TRIPPED): State.OPEN,
    (State.OPEN, Input.PROBE): State.PROBING,
    (State.PROBING, Input.SUCCESS): State.CLOSED,
    (State.PROBING, Input.FAILURE): State.OPEN,
}


class Breaker:
    """`begin` gives a ticket, `succeeded` or `failed` gives it back. What began before the last change of state is no
    longer heard: a server that answers an old request may still be stuck with the new ones."""

    def __init__(self, failures_max: int, pause_s: float) -> None:
        self.state = State.CLOSED
        self._failures_max = failures_max
        self._pause_s = pause_s
        self._failures = 0
        self._open_until = 0.0
        self._tickets = 0
        self._deadlines: dict[int, float] = {}  # of the requests under way

    def begin(self, now: float, deadline: float) -> int | None:
        """A ticket for a request that ends by `deadline`, or None: do not ask."""
        self.handle_timer(now)
        if self.state is State.PROBING or (self.state is State.OPEN and now < self._open_until):
            return None
        if self.state is State.OPEN:
            self._to(Input.PROBE)
        self._tickets += 1
        self._deadlines[self._tickets] = deadline
        return self._tickets

    def succeeded(self, ticket: int, now: float) -> None:
        self.handle_timer(now)
        if self._deadlines.pop(ticket, None) is None:
            return
        self._failures = 0
        if self.state is State.PROBING:
            self._to(Input.SUCCESS)

    def failed(self, ticket: int, now: float) -> None:
        self.handle_timer(now)
        if ticket in self._deadlines:
            self._fail(ticket, now)

    def next_timer(self) -> float | None:
        """When the first request under way will have failed."""
        return min(self._deadlines.values(), default=None)

    def handle_timer(self, now: float) -> None:
        """Fail what is overdue, each at its own time, so that the result does not depend on how often one looks."""
        while (at := self.next_timer()) is not None and at <= now:
            self._fail(min(self._deadlines, key=self._deadlines.__getitem__), at)

    def _fail(self, ticket: int, at: float) -> None:
        del self._deadlines[ticket]
        self._failures += 1
        if self.state is State.CLOSED and self._failures < self._failures_max:
            return
        self._open_until = at + self._pause_s
        self._to(Input.TRIPPED if self.state is State.CLOSED else Input.FAILURE)

    def _to(self, what: Input) -> None:
        self.state = TRANSITIONS[self.state, what]
        self._failures = 0
        self._deadlines.clear()
