"""The breaker: whatever the order of requests, answers and time, a dead server is asked rarely and a live one again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recalld.core.breaker import TRANSITIONS, Breaker, Input, State

FAILURES_MAX = 3
PAUSE_S = 10.0


def tripped(at: float = 0.0) -> Breaker:
    breaker = Breaker(FAILURES_MAX, PAUSE_S)
    for _ in range(FAILURES_MAX):
        ticket = breaker.begin(at, at + 1)
        assert ticket is not None
        breaker.failed(ticket, at)
    return breaker


def test_it_opens_after_failures_in_a_row_only() -> None:
    breaker = Breaker(FAILURES_MAX, PAUSE_S)
    for outcome in (breaker.failed, breaker.failed, breaker.succeeded, breaker.failed, breaker.failed):
        ticket = breaker.begin(0, 1)
        assert ticket is not None
        outcome(ticket, 0)
    assert breaker.state is State.CLOSED
    assert tripped().state is State.OPEN


def test_while_open_nothing_is_asked_and_then_one_request_is() -> None:
    breaker = tripped()
    assert breaker.begin(PAUSE_S - 0.001, PAUSE_S) is None
    probe = breaker.begin(PAUSE_S, PAUSE_S + 1)
    assert probe is not None
    assert breaker.begin(PAUSE_S, PAUSE_S + 1) is None
    breaker.succeeded(probe, PAUSE_S + 0.5)
    assert breaker.state is State.CLOSED


def test_a_failed_probe_begins_another_pause() -> None:
    breaker = tripped()
    probe = breaker.begin(PAUSE_S, PAUSE_S + 1)
    assert probe is not None
    breaker.failed(probe, PAUSE_S + 0.5)
    assert breaker.begin(2 * PAUSE_S, 2 * PAUSE_S + 1) is None
    assert breaker.begin(2 * PAUSE_S + 0.5, 2 * PAUSE_S + 1) is not None


def test_a_request_that_is_never_heard_of_fails_at_its_deadline() -> None:
    breaker = Breaker(FAILURES_MAX, PAUSE_S)
    tickets = [breaker.begin(0, n + 1) for n in range(FAILURES_MAX)]
    assert breaker.next_timer() == 1
    breaker.handle_timer(FAILURES_MAX)
    assert breaker.state is State.OPEN
    assert tickets[0] is not None
    breaker.succeeded(tickets[0], FAILURES_MAX)  # too late to be heard
    assert breaker.state is State.OPEN
    assert breaker.begin(FAILURES_MAX + PAUSE_S - 0.001, 99) is None  # the pause counts from the deadline
    assert breaker.begin(FAILURES_MAX + PAUSE_S, 99) is not None


def test_every_transition_is_taken_by_some_test_above() -> None:
    assert set(TRANSITIONS) == {
        (State.CLOSED, Input.TRIPPED),
        (State.OPEN, Input.PROBE),
        (State.PROBING, Input.SUCCESS),
        (State.PROBING, Input.FAILURE),
    }


STEPS = st.lists(
    st.tuples(st.sampled_from(["begin", "succeeded", "failed", "look"]), st.integers(0, 4), st.integers(0, 5)),
    max_size=80,
)


@given(STEPS)
def test_its_promises_hold_for_any_history(steps: list[tuple[str, int, int]]) -> None:
    """`looked` is told of every moment; `breaker` only of what happens: both must agree."""
    breaker, looked = Breaker(FAILURES_MAX, PAUSE_S), Breaker(FAILURES_MAX, PAUSE_S)
    now, opened_at = 0.0, 0.0
    waiting: list[int] = []
    for what, pause, number in steps:
        for _ in range(pause):
            now += 1
            before = looked.state
            looked.handle_timer(now)
            if looked.state is State.OPEN and before is not State.OPEN:
                opened_at = now
        before = looked.state
        if what == "begin":
            ticket = breaker.begin(now, now + 1 + number)
            assert ticket == looked.begin(now, now + 1 + number)
            if before is State.OPEN:
                assert (ticket is not None) == (now >= opened_at + PAUSE_S)
            else:
                assert (ticket is not None) == (before is State.CLOSED)
            if ticket is not None:
                waiting.append(ticket)
        elif what in ("succeeded", "failed") and waiting:
            ticket = waiting.pop(number % len(waiting))
            for each in (breaker, looked):
                getattr(each, what)(ticket, now)
            if looked.state is State.OPEN and before is not State.OPEN:
                opened_at = now
        breaker.handle_timer(now)
        assert breaker.state is looked.state
        assert breaker.next_timer() == looked.next_timer()
        if looked.state is State.OPEN:
            assert looked.next_timer() is None
