"""What reaches a prompt in a running recall: nothing twice, the same for a run that asks twice, and what a first prompt gets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from recalld.edge.reader import Reader
from recalld.wire.messages import ContextBody
from service.test_recall import SETTINGS, House

TYRES = "winter barn"
NOTHING = "quantum chromodynamics lecture"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.close()


def ask(house: House, query: str, run_id: str = "", session: str = "s", **settings: Any) -> ContextBody:
    """An answer in a session, at its own settings."""
    return house.ask(
        query, ttl=10, agent="main", session=session, run_id=run_id, settings=replace(SETTINGS, **settings)
    )()


def ids(body: ContextBody) -> list[str]:
    return [m.id for m in body.memories]


def test_what_a_session_was_given_is_not_given_again(house: House) -> None:
    assert ids(ask(house, TYRES, "r1")) == ["m1"]
    again = ask(house, TYRES, "r2")
    assert (again.status, again.reason, again.text) == ("empty", "given", "")
    assert ids(ask(house, TYRES, "r1", session="another")) == ["m1"]


def test_a_run_that_asks_twice_gets_the_same_answer(house: House) -> None:
    first = ask(house, TYRES, "r1")
    again = ask(house, TYRES, "r1")
    assert replace(again, elapsed_ms=first.elapsed_ms) == first
    assert first.text


def test_after_so_many_turns_it_is_given_again(house: House) -> None:
    given = [ids(ask(house, TYRES, f"r{n}", repeat_turns=2)) for n in range(6)]
    assert given == [["m1"], [], [], ["m1"], [], []]
    assert [ids(ask(house, TYRES, f"o{n}", session="off", repeat_turns=0)) for n in range(2)] == [["m1"]] * 2


def test_questions_without_a_run_are_turns_of_their_own(house: House) -> None:
    assert ids(ask(house, TYRES)) == ["m1"]
    assert ids(ask(house, TYRES)) == []


def test_a_session_that_was_cleared_is_offered_it_again(house: House) -> None:
    assert ids(ask(house, TYRES, "r1")) == ["m1"]
    house.recall.forget_given("main", "other")
    house.recall.forget_given("other", "s")
    assert ids(ask(house, TYRES, "r2")) == []
    house.recall.forget_given("main", "s")
    assert ids(ask(house, TYRES, "r3")) == ["m1"]


def test_what_was_asked_before_a_clearing_does_not_count_after_it(house: House) -> None:
    house.embedder.gate.clear()
    answers: list[ContextBody] = []
    asking = threading.Thread(target=lambda: answers.append(ask(house, TYRES, "r1")))
    asking.start()
    while not house.recall._race._runners:
        pass
    house.recall.forget_given("main", "s")
    house.embedder.gate.set()
    asking.join()
    assert ids(answers[0]) == ["m1"]


def test_many_threads_of_one_session(house: House) -> None:
    bodies: list[ContextBody] = []

    def work(n: int) -> None:
        bodies.append(ask(house, TYRES, f"r{n}"))
        house.recall.forget_given("main", "s")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {body.status for body in bodies} <= {"ok", "empty"}
    assert len(bodies) == 16


def test_placement_is_told_with_the_text_alone(house: House) -> None:
    assert ask(house, TYRES, placement="system").placement == "system"
    assert ask(house, NOTHING, placement="system").placement == "prepend"


@pytest.mark.parametrize("block", ["auto-recall", "memory-context"])
def test_the_style_is_the_configurations(house: House, block: str) -> None:
    assert block in ask(house, TYRES, block=block).text.splitlines()[0]


def test_a_first_prompt_gets_nothing_by_default(house: House) -> None:
    assert ask(house, NOTHING).status == "empty"


def test_a_first_prompt_may_get_a_hint_and_no_later_one(house: House) -> None:
    body = ask(house, NOTHING, "r1", cold_start="hint")
    assert (body.status, body.reason, body.memories) == ("ok", "cold_start", [])
    assert "2 memories" in body.text
    assert "memory_search" in body.text
    assert ask(house, NOTHING, "r1", cold_start="hint").text == body.text  # the same run again
    assert ask(house, NOTHING, "r2", cold_start="hint").status == "empty"
    house.recall.forget_given("main", "s")
    assert ask(house, NOTHING, "r3", cold_start="hint").text == body.text


def test_a_first_prompt_may_get_the_newest_memories(house: House) -> None:
    body = ask(house, NOTHING, "r1", cold_start="digest")
    assert (body.reason, ids(body)) == ("cold_start", ["m2", "m1"])
    assert "Untrusted" in body.text
    assert body.memories[0].score is None
    assert ask(house, TYRES, "r2", cold_start="digest").reason == "given"
    found = ask(house, TYRES, session="new", cold_start="digest")
    assert (found.status, found.reason, ids(found)) == ("ok", None, ["m1", "m2"])


def test_a_full_block_has_no_cold_start(house: House) -> None:
    assert ids(ask(house, TYRES, cold_start="digest", items_max=1)) == ["m1"]


def test_a_late_answer_has_no_cold_start(house: House) -> None:
    house.embedder.gate.clear()
    house.lexical.gate.clear()
    assert house.ask(NOTHING, settings=replace(SETTINGS, cold_start="digest"), session="s")().status == "error"


def test_the_newest_are_notes_and_facts_of_the_namespace(house: House, tmp_path: Path) -> None:
    reader = Reader(tmp_path / "r.db", 1)
    assert [m.id for m in reader.newest("main", 1)] == [2]
    assert reader.newest("other", 9) == []
    reader.close()


def test_a_question_answered_by_the_keeper_is_not_held_up_for_a_digest(house: House) -> None:
    house.lexical.gate.clear()
    body = house.ask(NOTHING, settings=replace(SETTINGS, cold_start="digest"), session="s")()
    assert (body.status, body.text) == ("partial", "")
