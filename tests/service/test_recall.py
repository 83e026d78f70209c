"""Recall under a deadline: each search may be late, stuck or broken, and the answer still comes, once, with its status."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from recalld.core.features import encode, features_of
from recalld.core.pack import RecallSettings
from recalld.core.rank import WEIGHTS, Background
from recalld.core.scored import Ranked
from recalld.core.words import terms
from recalld.edge.embed import DIMENSIONS, Embedder, Vectors
from recalld.edge.lexical import LexicalIndex, LexicalState
from recalld.edge.reader import Reader
from recalld.edge.recalls import uses_unit
from recalld.edge.store import Store
from recalld.edge.units import Entry, MemoryRow, memories_unit
from recalld.service.counters import Counters
from recalld.service.indexing import NamespaceIndex
from recalld.service.injection import Injection
from recalld.service.question import Question
from recalld.service.ranking import Ranker
from recalld.service.recall import WAITING_FEW, WAITING_MAX, Recall
from recalld.wire.messages import ContextBody

TEXTS = ("Ada: The winter tyres are in the barn.", "Ada: The summer tyres are at the garage in Lund.")
TTL = 0.4
SETTINGS = RecallSettings(floor=0.3)
BACKGROUND = Background({"the": 0.7, "are": 0.4, "in": 0.5}, 0.0001)


def unit(text: str) -> Vectors:
    vector = np.zeros(DIMENSIONS, dtype=np.float32)
    for term in terms(text):
        vector[sum(term.encode()) % DIMENSIONS] += 1
    return np.asarray(vector / max(1e-9, float(np.linalg.norm(vector))), dtype=np.float32)


class FakeEmbedder(Embedder):
    """Bags of words; `gate` holds every embedding until it is set."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.broken = False
        self.asked = 0

    def embed(self, texts: list[str]) -> Vectors:
        self.asked += 1
        self.gate.wait(10)
        if self.broken:
            raise RuntimeError("the embedder is broken")
        return np.stack([unit(text) for text in texts])


class SlowLexical(LexicalIndex):
    """A word index that can be held."""

    gate = threading.Event()

    def search(self, *args: Any, **kwargs: Any) -> Any:
        self.gate.wait(10)
        return super().search(*args, **kwargs)


class House:
    """A recall thread over a real record and real indexes of two memories."""

    def __init__(self, folder: Path) -> None:
        self.counters = Counters()
        self.noted: list[tuple[Question, Ranked | None, ContextBody]] = []
        self.embedder = FakeEmbedder()
        anyio.run(self._fill, folder)
        self.index = NamespaceIndex("main", folder / "index")
        self.lexical = self.index.lexical = SlowLexical(folder / "index" / "lexical")
        self.lexical.gate.set()
        self.index.lexical.apply([(n, " ".join(terms(t))) for n, t in enumerate(TEXTS, 1)], [], LexicalState(2, 0))
        self.index.vectors.add([1, 2], np.stack([unit(t) for t in TEXTS]))
        self.index.features.add(Reader(folder / "r.db", 1).entries("main", 0))
        self.recall = Recall(
            readers=lambda: Reader(folder / "r.db", 1),
            embedder=self.embedder,
            ranker=Ranker(BACKGROUND),
            injection=Injection(BACKGROUND, lambda namespace: len(self.index.vectors)),
            counters=self.counters,
            find={"main": self.index}.get,
            note=self._note,
        )
        self.recall.start()

    async def _fill(self, folder: Path) -> None:
        store = Store(folder / "r.db")
        await store.open("test")
        rows = [MemoryRow(n, "main", None, "note", "note", text, 0) for n, text in enumerate(TEXTS, 1)]
        entries = [Entry(" ".join(terms(text)), unit(text), encode(features_of(text, "Ada", None))) for text in TEXTS]
        assert await store.commit([memories_unit(rows, entries, store.model_id)]) == [None]
        await store.close()

    def _note(self, question: Question, ranked: Ranked | None, body: ContextBody) -> None:
        self.noted.append((question, ranked, body))

    def ask(self, query: str, ttl: float = TTL, **fields: Any) -> Callable[[], ContextBody]:
        """Returns a function that waits for the answer and checks that it came once."""
        answers: list[ContextBody] = []
        answered = threading.Event()

        def answer(body: ContextBody) -> None:
            answers.append(body)
            answered.set()

        now = time.monotonic()
        fields = {"key": f"k{now}", "namespace": "main", "settings": SETTINGS, **fields}
        self.recall.ask(Question(query=query, started=now, deadline=now + ttl, answer=answer, **fields))

        def wait() -> ContextBody:
            assert answered.wait(20)
            assert len(answers) == 1
            return answers[0]

        return wait

    def close(self) -> None:
        self.embedder.gate.set()
        self.lexical.gate.set()
        self.recall.stop()
        self.lexical.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.close()


def test_both_searches_are_heard(house: House) -> None:
    body = house.ask("where are the winter tyres", ttl=10)()
    assert (body.status, body.reason) == ("ok", None)
    assert body.memories[0].id == "m1"
    assert (body.memories[0].lexical or 0) > 0.6 > (body.memories[1].lexical or 0)
    assert (body.memories[0].vector or 0) > 0
    assert "in the barn" in body.text


def test_nothing_relevant_is_an_answer(house: House) -> None:
    body = house.ask("quantum chromodynamics lecture", ttl=10)()
    assert (body.status, body.text, body.memories) == ("empty", "", [])


def test_a_prompt_without_words_of_its_own_is_found_by_its_context(house: House) -> None:
    assert house.ask("and since when?", ttl=10)().status == "empty"
    body = house.ask("and since when?", ttl=10, context="The winter tyres are in the barn?")()
    assert body.memories[0].id == "m1"
    assert (body.memories[0].lexical or 0) > 0
    assert (body.memories[0].vector or 0) > 0


def test_another_namespace_has_nothing(house: House) -> None:
    assert house.ask("winter tyres", namespace="other")().status == "empty"


@pytest.mark.parametrize(("lane", "reason"), [("vector", "vector_late"), ("lexical", "lexical_late")])
def test_one_late_search_gives_the_others_results(house: House, lane: str, reason: str) -> None:
    gate = house.embedder.gate if lane == "vector" else house.lexical.gate
    gate.clear()
    body = house.ask("where are the winter tyres")()
    assert (body.status, body.reason) == ("partial", reason)
    assert "in the barn" in body.text
    gate.set()
    assert house.ask("where are the summer tyres", ttl=10)().status == "ok"  # the late result was dropped


def test_two_late_searches_are_an_error_in_time_not_silence(house: House) -> None:
    house.embedder.gate.clear()
    house.lexical.gate.clear()
    started = time.monotonic()
    body = house.ask("where are the winter tyres")()
    assert (body.status, body.reason) == ("error", "E_DEADLINE")
    assert time.monotonic() - started < 5  # not when the searches end


def test_what_could_not_be_ranked_in_time_is_not_begun(house: House) -> None:
    assert house.ask("where are the winter tyres", ttl=10)().status == "ok"
    body = house.ask("where are the summer tyres", ttl=1e-6)()
    assert (body.status, body.reason) == ("error", "E_DEADLINE")


def test_a_ranking_that_takes_too_long_is_answered_for_by_the_keeper(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    rank = Ranker.rank

    def slow(*args: Any, **kwargs: Any) -> Any:
        gate.wait(10)
        return rank(*args, **kwargs)

    monkeypatch.setattr(Ranker, "rank", slow)
    wait = house.ask("where are the winter tyres", ttl=0.3)
    body = wait()
    assert (body.status, body.reason) == ("error", "E_DEADLINE")
    gate.set()
    assert house.ask("where are the summer tyres", ttl=10)().status == "ok"
    assert wait() is body  # and there was no second answer


def test_a_broken_search_is_a_late_one(house: House) -> None:
    house.embedder.broken = True
    body = house.ask("where are the winter tyres", ttl=10)()
    assert (body.status, body.reason) == ("partial", "vector_late")


def test_a_stuck_search_does_not_hold_up_the_next_question(house: House) -> None:
    house.embedder.gate.clear()
    first = house.ask("where are the winter tyres")
    second = house.ask("where are the summer tyres")
    assert {first().status, second().status} == {"partial"}


def test_too_many_questions_are_refused_at_once(house: House) -> None:
    house.embedder.gate.clear()
    house.lexical.gate.clear()
    waits = [house.ask("where are the winter tyres", key=f"q{n}", ttl=3) for n in range(WAITING_MAX)]
    body = house.ask("one more")()
    assert (body.status, body.reason) == ("error", "E_BUSY")
    house.embedder.gate.set()
    house.lexical.gate.set()
    assert {wait().status for wait in waits} <= {"ok", "partial", "error"}


def test_who_would_wait_in_vain_is_told_at_once(house: House) -> None:
    house.embedder.gate.clear()
    house.recall._service_s = 1.0
    waits = [house.ask("where are the winter tyres", key=f"q{n}", limit=1, ttl=4) for n in range(WAITING_FEW + 1)]
    body = house.ask("one more", ttl=4)()
    assert (body.status, body.reason) == ("error", "E_BUSY")
    patient = house.ask("one that can wait", ttl=60)
    house.embedder.gate.set()
    assert {wait().status for wait in waits} <= {"ok", "partial"}
    assert patient().status in ("ok", "empty")


def test_a_search_is_ranked_and_has_no_floor(house: House) -> None:
    body = house.ask("barn lecture", ttl=10, limit=5)()
    assert [m.id for m in body.memories][:1] == ["m1"]
    assert body.text == ""


def test_a_score_does_not_depend_on_what_else_was_found(house: House) -> None:
    alone = house.ask("winter tyres", ttl=10, limit=1)().memories[0]
    among = house.ask("winter tyres", ttl=10, limit=9)().memories[0]
    assert (alone.id, alone.score) == (among.id, among.score)


def test_idle_work_runs_between_questions_and_raises_where_it_was_asked(house: House) -> None:
    ran: list[int] = []
    house.recall.when_idle(lambda: ran.append(1))
    assert ran == [1]
    with pytest.raises(ZeroDivisionError):
        house.recall.when_idle(lambda: ran.append(1 // 0))
    assert house.ask("where are the winter tyres", ttl=10)().status == "ok"


def test_questions_under_way_are_answered_when_recall_stops(house: House) -> None:
    house.embedder.gate.clear()
    house.lexical.gate.clear()
    wait = house.ask("where are the winter tyres", ttl=30)
    stopping = threading.Thread(target=house.recall.stop)
    stopping.start()
    assert wait().reason == "E_DEADLINE"
    house.close()
    stopping.join()


# -- asked again, and asked together


def test_the_same_words_again_are_answered_without_a_search(house: House) -> None:
    first = house.ask("where are the winter tyres", ttl=10)()
    house.embedder.gate.clear()
    house.lexical.gate.clear()
    again = house.ask("where are the winter tyres", ttl=10, session="another")()
    assert (again.status, again.text, again.memories) == (first.status, first.text, first.memories)
    assert (house.embedder.asked, house.counters.cached) == (1, 1)


def test_a_write_to_the_namespace_makes_a_new_search(house: House) -> None:
    house.ask("where are the winter tyres", ttl=10)()
    house.index.changed()
    house.ask("where are the winter tyres", ttl=10)()
    assert (house.embedder.asked, house.counters.cached) == (2, 0)


@pytest.mark.parametrize(
    "other",
    [
        {"query": "where are the summer tyres"},
        {"settings": RecallSettings(floor=0.31)},
        {"limit": 5},
        {"context": "the car needs new ones"},
        {"settings": RecallSettings(floor=0.3, cache_s=0)},
    ],
)
def test_what_differs_or_is_no_prompt_is_searched_for(house: House, other: dict[str, Any]) -> None:
    house.ask("where are the winter tyres", ttl=10)()
    house.ask(**{"query": "where are the winter tyres", "ttl": 10, **other})()
    assert (house.embedder.asked, house.counters.cached) == (2, 0)


def test_a_late_search_leaves_nothing_to_be_answered_with(house: House) -> None:
    house.embedder.gate.clear()
    assert house.ask("where are the winter tyres")().status == "partial"
    house.embedder.gate.set()
    assert house.ask("where are the winter tyres", ttl=10)().status == "ok"
    assert house.counters.cached == 0


def test_those_who_ask_the_same_share_one_search_and_keep_their_own_deadlines(house: House) -> None:
    house.embedder.gate.clear()
    patient = [house.ask("where are the winter tyres", ttl=20, key=f"k{n}") for n in range(5)]
    hurried = house.ask("where are the winter tyres")
    other = house.ask("where are the summer tyres", ttl=20)
    assert (hurried().status, hurried().reason) == ("partial", "vector_late")
    house.embedder.gate.set()
    answers = [wait() for wait in patient]
    assert {answer.status for answer in [*answers, other()]} == {"ok"}
    assert {answer.memories[0].id for answer in answers} == {"m1"}
    assert (house.embedder.asked, house.counters.shared) == (2, 5)


def test_a_patient_asker_is_served_by_the_search_of_one_who_ran_out_of_time(house: House) -> None:
    house.embedder.gate.clear()
    blocked = house.ask("where are the summer tyres", ttl=20)  # both wait behind it in the vector lane
    hurried = house.ask("where are the winter tyres")
    patient = house.ask("where are the winter tyres", ttl=20)
    assert hurried().reason == "vector_late"
    house.embedder.gate.set()
    assert (patient().status, blocked().status) == ("ok", "ok")


def test_nobody_shares_a_search_that_began_before_a_write(house: House) -> None:
    house.embedder.gate.clear()
    before = house.ask("where are the winter tyres", ttl=20)
    house.index.changed()
    after = house.ask("where are the winter tyres", ttl=20)
    house.embedder.gate.set()
    assert (before().status, after().status) == ("ok", "ok")
    assert (house.embedder.asked, house.counters.shared) == (2, 0)


def test_each_asker_decides_for_itself(house: House) -> None:
    """What one asker's decisions say of a candidate is not said to the next."""
    for _ in range(2):
        house.ask("where are the winter tyres", ttl=10)()
    house.recall.stop()
    (_, first, _), (_, second, _) = house.noted
    assert first is not None
    assert second is not None
    assert first.memories[0].memory.id == second.memories[0].memory.id
    assert first.memories[0] is not second.memories[0]


# -- what is said of it afterwards


def test_what_is_noted_has_every_candidate_and_the_time_of_each_stage(house: House) -> None:
    best, next_best = house.ask("where are the winter tyres", ttl=10, limit=2)().memories
    settings = RecallSettings(floor=((best.score or 0) + (next_best.score or 0)) / 2)
    house.ask("where are the winter tyres", ttl=10, settings=settings)()
    house.recall.stop()
    [(question, ranked, body)] = house.noted
    assert ranked is not None
    judged = ranked.judged({1}) + ranked.below().judged()
    assert {c.id: c.verdict for c in judged} == {1: "injected", 2: "below_floor"}
    assert all(set(WEIGHTS) <= set(c.parts) for c in judged)
    assert set(question.stages) == {"vector", "lexical", "searched", "ranked", "ordered", "packed"}
    assert body.memories


def test_a_watched_question_is_neither_counted_nor_noted_nor_shared(house: House) -> None:
    seen: list[ContextBody] = []
    answered = threading.Event()

    def watch(question: Question, ranked: Ranked | None, body: ContextBody) -> None:
        seen.append(body)
        answered.set()

    house.ask("where are the winter tyres", ttl=10, watch=watch)()
    assert answered.wait(10)
    assert seen[0].status == "ok"
    house.ask("where are the winter tyres", ttl=10)()
    house.recall.stop()
    assert (house.counters.recalls["ok"], len(house.counters.latencies_ms), len(house.noted)) == (1, 1, 1)
    assert (house.counters.cached, house.embedder.asked) == (0, 2)


def test_a_search_is_not_noted(house: House) -> None:
    house.ask("barn lecture", ttl=10, limit=5)()
    house.recall.stop()
    assert house.noted == []


def test_being_recalled_makes_nothing_more_relevant(house: House, tmp_path: Path) -> None:
    async def use() -> None:
        store = Store(tmp_path / "r.db")
        await store.open("test")
        assert await store.commit([uses_unit({2: (100, 1)})]) == [None]
        assert await store.uses(2) == (100, 1)
        await store.close()

    before = house.ask("where are the winter tyres", ttl=10, limit=2)().memories
    anyio.run(use)
    assert house.ask("where are the winter tyres", ttl=10, limit=2)().memories == before
