"""What a session was given lately, as it forgets, is told again, and is cleared."""

from __future__ import annotations

from recalld.core.given import SESSIONS_MAX, Given, Recent, Session, Shown


def whole(n: int, turn: int | None = None, kind: str = "turn") -> Shown:
    return Shown(n, turn, kind, None)


def test_what_was_given_is_known_for_so_many_turns() -> None:
    session = Session()
    for n in range(1, 5):
        session.gave(f"run-{n}", (whole(n),), turns=2)
    assert set(session.recent("run-5", 2).memories) == {3, 4}
    assert session.recent("run-5", 0).memories == {}


def test_a_run_that_is_asked_for_again_does_not_know_its_own_answer() -> None:
    session = Session()
    session.gave("run-1", (whole(1),), turns=5)
    session.gave("run-2", (whole(2),), turns=5)
    assert set(session.recent("run-2", 5).memories) == {1}
    session.gave("run-2", (whole(2),), turns=5)
    assert set(session.recent("run-3", 5).memories) == {1, 2}


def test_the_first_run_is_the_first_however_often_it_is_asked_for() -> None:
    session = Session()
    assert session.recent("run-1", 0).first
    session.gave("run-1", (), turns=0)
    assert session.recent("run-1", 0).first
    assert not session.recent("run-2", 0).first


def test_parts_add_up_and_the_whole_is_the_whole() -> None:
    session = Session()
    session.gave("run-1", (Shown(1, 7, "turn", frozenset({0})), whole(2, 8)), turns=5)
    session.gave("run-2", (Shown(1, 7, "turn", frozenset({3})), whole(3, 9, "fact")), turns=5)
    assert session.recent("run-3", 5) == Recent({1: frozenset({0, 3}), 2: None, 3: None}, {8}, first=False)
    session.gave("run-3", (whole(1, 7),), turns=5)
    assert session.recent("run-4", 5).memories[1] is None


def test_a_session_that_was_cleared_begins_anew_and_takes_no_late_word() -> None:
    given = Given()
    session = given.session("s", None)
    given.forget("s")
    session.gave("run-1", (whole(1),), turns=5)  # an answer that was under way
    assert given.session("s", None).recent("run-2", 5) == Recent()


def test_another_transcript_is_another_session() -> None:
    given = Given()
    given.session("s", "a").gave("run-1", (whole(1),), turns=5)
    assert not given.session("s", None).recent("run-2", 5).first
    assert not given.session("s", "a").recent("run-2", 5).first
    assert given.session("s", "b").recent("run-2", 5).first


def test_sessions_and_runs_are_bounded() -> None:
    given = Given()
    for n in range(SESSIONS_MAX + 10):
        for run in range(20):
            given.session(n, None).gave(f"run-{run}", (whole(run),), turns=5)
    assert len(given) == SESSIONS_MAX
    assert len(given.session(SESSIONS_MAX, None).runs) <= 6
    assert given.session(0, None).recent("x", 5).first
