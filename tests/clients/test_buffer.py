"""The resend buffer: pure, so every order of events can be tried."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recalld_client.buffer import GAP_PAUSE_S, PAUSE_S, ResendBuffer

BIG = 1 << 20


def filled(count: int, **bounds: int) -> ResendBuffer:
    buffer = ResendBuffer(**bounds)
    for number in range(1, count + 1):
        assert buffer.add(str(number).encode()) == number
    return buffer


def sent(buffer: ResendBuffer, now: float = 0.0) -> list[int]:
    return [int(message) for message in buffer.take(BIG, now)]


def test_seq_starts_at_one_and_everything_is_sent_once_in_order() -> None:
    buffer = filled(3)
    assert (buffer.oldest, buffer.next_seq, len(buffer)) == (1, 4, 3)
    assert sent(buffer) == [1, 2, 3]
    assert sent(buffer) == []
    buffer.add(b"4")
    assert sent(buffer) == [4]


def test_an_acknowledgement_frees_and_never_unfrees() -> None:
    buffer = filled(3)
    sent(buffer)
    buffer.ack(2, 2, 0.0)
    assert (buffer.oldest, len(buffer)) == (3, 1)
    buffer.ack(1, 1, 0.0)
    assert (buffer.oldest, len(buffer)) == (3, 1)
    buffer.ack(99, 99, 0.0)
    assert (buffer.oldest, len(buffer), buffer.lost) == (4, 0, 0)
    assert not buffer.unsettled


def test_overflow_drops_the_oldest_counts_it_and_wants_it_told() -> None:
    buffer = filled(5, events_max=3)
    assert (buffer.oldest, buffer.lost, len(buffer)) == (3, 2, 3)
    before = buffer.unsettled
    buffer.welcome(2, 0.0)
    assert (before, buffer.unsettled) == (True, False)
    assert sent(buffer) == [3, 4, 5]


def test_bytes_are_bounded_too() -> None:
    buffer = ResendBuffer(events_max=100, bytes_max=10)
    for _ in range(4):
        buffer.add(b"1234")
    assert (len(buffer), buffer.lost, buffer.oldest) == (2, 2, 3)


@pytest.mark.parametrize("bounds", [{"events_max": 0}, {"bytes_max": 0}])
def test_bounds_below_one_are_refused(bounds: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ResendBuffer(**bounds)


def test_a_welcome_starts_again_with_all_that_is_left() -> None:
    buffer = filled(4)
    sent(buffer)
    buffer.welcome(2, 0.0)
    assert sent(buffer) == [3, 4]


def test_a_welcome_with_less_than_was_acknowledged_wants_oldest_told() -> None:
    buffer = filled(4)
    sent(buffer)
    buffer.ack(3, 3, 0.0)
    buffer.welcome(1, 0.0)
    assert buffer.unsettled
    assert (buffer.oldest, len(buffer)) == (4, 1)
    assert sent(buffer) == [4]


def test_the_gap_is_sent_again_and_only_once_in_a_while() -> None:
    buffer = filled(6)
    sent(buffer)
    buffer.ack(2, 5, 1.0)
    assert sent(buffer, 1.0) == [3, 4, 5]
    buffer.ack(2, 6, 1.0 + GAP_PAUSE_S / 2)
    assert sent(buffer, 1.1) == []
    buffer.ack(2, 6, 1.0 + GAP_PAUSE_S)
    assert sent(buffer, 1.2) == [3, 4, 5, 6]


def test_a_gap_names_only_what_was_sent() -> None:
    buffer = filled(3)
    buffer.ack(0, 10**12, 1.0)
    assert sent(buffer, 1.0) == [1, 2, 3]


def test_without_progress_everything_is_sent_again_after_the_pause() -> None:
    buffer = filled(2)
    assert buffer.next_timer() is None
    sent(buffer, 5.0)
    assert buffer.next_timer() == 5.0 + PAUSE_S
    buffer.handle_timer(5.0 + PAUSE_S - 0.01)
    assert sent(buffer, 5.9) == []
    buffer.handle_timer(5.0 + PAUSE_S)
    assert sent(buffer, 6.0) == [1, 2]
    assert buffer.next_timer() == 6.0 + PAUSE_S


def test_progress_starts_the_pause_anew_and_sending_more_does_not() -> None:
    buffer = filled(2)
    sent(buffer, 0.0)
    buffer.add(b"3")
    sent(buffer, 0.9)
    assert buffer.next_timer() == PAUSE_S
    buffer.ack(1, 1, 0.95)
    assert buffer.next_timer() == 0.95 + PAUSE_S
    buffer.ack(3, 3, 0.96)
    assert buffer.next_timer() is None


def test_the_pause_counts_from_the_first_message_after_silence() -> None:
    buffer = filled(1)
    sent(buffer, 0.0)
    buffer.ack(1, 1, 0.1)
    buffer.add(b"2")
    sent(buffer, 50.0)
    assert buffer.next_timer() == 50.0 + PAUSE_S


def test_no_more_than_the_window_is_under_way() -> None:
    buffer = filled(5)
    buffer.window = 2
    assert sent(buffer) == [1, 2]
    buffer.ack(1, 1, 0.0)
    assert sent(buffer) == [3]


def test_a_batch_ends_at_its_bytes() -> None:
    buffer = filled(9)
    assert buffer.take(4, 0.0) == [b"1", b"2", b"3", b"4"]


def test_what_is_given_up_is_counted_and_passed_over() -> None:
    buffer = filled(4)
    assert buffer.give_up(2)
    assert not buffer.give_up(2)
    assert (buffer.oldest, buffer.lost) == (1, 1)
    assert sent(buffer) == [1, 3, 4]
    assert not buffer.unsettled
    buffer.ack(1, 4, 0.0)
    assert (buffer.oldest, buffer.unsettled) == (3, True)
    buffer.ack(4, 4, 0.0)
    assert (buffer.oldest, len(buffer), buffer.unsettled) == (5, 0, False)


def test_what_is_refused_takes_no_seq() -> None:
    buffer = filled(1)
    buffer.refuse()
    assert (buffer.lost, buffer.next_seq) == (1, 2)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 20)),
            st.tuples(st.just("ack"), st.integers(0, 60)),
            st.tuples(st.just("welcome"), st.integers(0, 60)),
            st.tuples(st.just("take"), st.integers(1, 50)),
            st.tuples(st.just("give_up"), st.integers(0, 60)),
            st.tuples(st.just("wait"), st.integers(1, 30)),
        )
    ),
    st.integers(1, 8),
)
def test_every_message_is_held_settled_or_lost(steps: list[tuple[str, int]], events_max: int) -> None:
    buffer = ResendBuffer(events_max=events_max, bytes_max=60)
    now, added, settled = 0.0, 0, 0
    for step, number in steps:
        held = len(buffer)
        match step:
            case "add":
                added += 1
                assert buffer.add(b"x" * number) == added
            case "ack" | "welcome":
                if step == "ack":
                    buffer.ack(number, number + 2, now)
                else:
                    buffer.welcome(number, now)
                settled += held - len(buffer)
            case "take":
                buffer.take(number, now)
            case "give_up":
                buffer.give_up(number)
            case "wait":
                now += number / 10
                buffer.handle_timer(now)
        assert len(buffer) + settled + buffer.lost == added
        assert len(buffer) <= events_max
        assert 1 <= buffer.oldest <= buffer.next_seq == added + 1
        assert (buffer.oldest == buffer.next_seq) == (len(buffer) == 0)


@given(st.integers(0, 10**9), st.integers(1, 60), st.integers(1, 20), st.integers(1, 20))
def test_all_arrives_over_a_line_that_loses_and_restarts(seed: int, count: int, events_max: int, window: int) -> None:
    """Against a model of the daemon: whatever is not counted as lost is stored, and the buffer ends empty."""
    rng = random.Random(seed)
    buffer = ResendBuffer(events_max=events_max)
    buffer.window = window
    stored: set[int] = set()
    upto, now, emitted = 0, 0.0, 0
    for _ in range(2000):
        now += 0.3
        if emitted < count and rng.random() < 0.7:
            buffer.add(str(emitted + 1).encode())
            emitted += 1
        buffer.handle_timer(now)
        stored |= {seq for seq in sent(buffer, now) if rng.random() < 0.5}
        fresh = rng.random() < 0.05
        if fresh or buffer.unsettled:
            upto = max(upto, buffer.oldest - 1)
        while upto + 1 in stored:
            upto += 1
        if fresh:
            buffer.welcome(upto, now)
        elif rng.random() < 0.5:
            buffer.ack(upto, max(stored, default=upto), now)
        if emitted == count and not len(buffer):
            break
    assert len(buffer) == 0
    assert len(set(range(1, count + 1)) - stored) <= buffer.lost
