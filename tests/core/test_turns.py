"""The turn machine under arbitrary signals, and its table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recalld.core.diagram import turn_diagram
from recalld.core.signals import Kind, Signal
from recalld.core.turn import TRANSITIONS, Input, State, Turn, TurnSettings
from recalld.core.turns import CLOSED_MAX, TurnBook
from recalld.wire.messages import Ctx

SETTINGS = TurnSettings(quiet_ms=50, grace_ms=10, idle_ms=500, linger_ms=300)


def signal(kind: Kind, at: int, seq: int | None, run: str | None, session: str, **fields: str) -> Signal:
    return Signal(
        kind=kind,
        type=kind.value,
        at_ms=at,
        ts=at,
        src="s",
        seq=None if kind is Kind.PROMPT else seq,
        agent="a",
        namespace="a",
        session=session,
        run_id=run,
        ctx=Ctx(),
        user=fields.get("user", ""),
        assistant=fields.get("assistant", ""),
    )


@st.composite
def streams(draw: st.DrawFn) -> list[Signal]:
    at, out = 0, []
    seqs = draw(st.permutations(range(1, 31))) if draw(st.booleans()) else range(1, 31)
    for seq in seqs:
        at += draw(st.sampled_from([0, 1, 9, 10, 11, 49, 50, 51, 299, 500, 501]))
        kind = draw(st.sampled_from(list(Kind)))
        out.append(
            signal(
                kind,
                at,
                seq,
                draw(st.sampled_from([None, "r1", "r2", "r3"])),
                draw(st.sampled_from(["x", "y"])),
                user=draw(st.sampled_from(["", "hello", "bye"])),
                assistant=draw(st.sampled_from(["", "yes", "no"])),
            )
        )
    return out


def run(stream: list[Signal], tick: int | None = None) -> tuple[list[Turn], list[tuple[str, int]], TurnBook]:
    book = TurnBook(SETTINGS)
    closed: list[Turn] = []
    needless: list[tuple[str, int]] = []
    now = 0
    for s in stream:
        while tick and now + tick < s.at_ms:
            now += tick
            book.handle_timer(now)
        now = s.at_ms
        book.handle_timer(now)
        if not book.receive(s, now) and s.seq is not None:
            needless.append((s.src, s.seq))
        while (turn := book.next_close()) is not None:
            closed.append(turn)
    book.handle_timer(10**6)  # long after every timer
    while (turn := book.next_close()) is not None:
        closed.append(turn)
    return closed, needless, book


@given(streams())
@settings(max_examples=400, deadline=None)
def test_every_signal_ends_in_exactly_one_turn_or_is_reported_needless(stream: list[Signal]) -> None:
    closed, needless, book = run(stream)
    counted = Counter(entry for turn in closed for entry in turn.journal) + Counter(needless)
    assert counted == Counter((s.src, s.seq) for s in stream if s.seq is not None)
    assert book.open_turns == 0


@given(streams(), st.integers(1, 40))
@settings(max_examples=200, deadline=None)
def test_how_often_the_loop_wakes_changes_nothing(stream: list[Signal], tick: int) -> None:
    assert run(stream)[0] == run(stream, tick)[0]


@given(streams())
@settings(max_examples=200, deadline=None)
def test_revisions_count_up_from_zero_and_sessions_do_not_touch(stream: list[Signal]) -> None:
    seen: dict[tuple[str, int, str], int] = {}
    for turn in run(stream)[0]:
        identity = (turn.session, turn.opened_ms, turn.key)
        if turn.revision:
            assert any(k[0] == turn.session for k in seen)
        seen[identity] = turn.revision
        assert turn.closed_ms >= turn.opened_ms
    alone = list(run([s for s in stream if s.session == "x"])[0])
    assert alone == [t for t in run(stream)[0] if t.session == "x"]


def test_every_state_answers_every_input() -> None:
    assert {(s, i) for s in State for i in Input if s is not State.GONE} == set(TRANSITIONS)
    with pytest.raises(KeyError):
        TRANSITIONS[State.GONE, Input.START]


def test_the_diagram_in_the_documents_is_the_table() -> None:
    assert turn_diagram() in (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text()


def test_a_session_remembers_a_bounded_number_of_closed_turns_and_forgets_them_in_time() -> None:
    book = TurnBook(SETTINGS)
    for n in range(CLOSED_MAX + 10):
        book.receive(signal(Kind.INPUT, n, n + 1, f"r{n}", "x", user="hello"), n)
    at = CLOSED_MAX + 9
    assert len(book._sessions["a", "x"].closed) == CLOSED_MAX
    book.handle_timer(at + SETTINGS.idle_ms + SETTINGS.linger_ms)
    assert book._sessions == {}
    assert book.next_timer() is None


def test_a_tool_call_of_a_stored_turn_is_not_kept() -> None:
    book = TurnBook(SETTINGS)
    book.receive(signal(Kind.OUTPUT, 0, 1, "r", "x", assistant="yes"), 0)
    book.handle_timer(60)
    assert book.next_close() is not None
    assert book.receive(signal(Kind.TOOL, 70, 2, "r", "x"), 70) is False
    assert book.open_turns == 0
