"""From relevance to what is given: attributes, successions, entities, directives and links over a real record."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import pytest
from msgspec.structs import replace

from recalld.config import IndexConfig
from recalld.core.directives import Directive, Then, When
from recalld.core.pack import RecallSettings
from recalld.core.rank import Background
from recalld.core.words import terms
from recalld.edge.embed import DIMENSIONS, Embedder, Vectors
from recalld.edge.reader import Reader
from recalld.edge.store import Store
from recalld.edge.units import LINKS_MAX, Attributes, TurnRow
from recalld.edge.vectors import VectorIndex
from recalld.service.counters import Counters
from recalld.service.indexing import Indexing
from recalld.service.injection import Injection
from recalld.service.lookups import ENTITY_MEMORIES_MAX, look_up
from recalld.service.memories import Memories, NewMemory, TurnWrite
from recalld.service.question import Question
from recalld.service.ranking import Ranker
from recalld.service.recall import Recall
from recalld.service.writer import Writer
from recalld.wire.messages import ContextBody

pytestmark = pytest.mark.anyio
SETTINGS = RecallSettings(floor=0.3, repeat_turns=0)
BACKGROUND = Background({"the": 0.7, "is": 0.6, "where": 0.1}, 0.0001)


class FakeEmbedder(Embedder):
    """Every text in one direction, which is another one for queries than for memories: words alone decide."""

    def __init__(self, direction: int) -> None:
        self.direction = direction

    def embed(self, texts: list[str]) -> Vectors:
        vectors = np.zeros((len(texts), DIMENSIONS), dtype=np.float32)
        vectors[:, self.direction] = 1
        return vectors


class CountingReader(Reader):
    """Knows what it was asked."""

    asked: list[str]

    def _all(self, sql: str, *parameters: Any) -> list[Any]:
        self.asked.append(sql)
        return super()._all(sql, *parameters)


class House:
    """Record, indexes and recall of a daemon."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder = folder
        self.store = store
        self.counters = Counters()
        self.writer = Writer(store, self.counters)
        self.asked: list[str] = []
        self.indexing = self._indexing()
        self.memories = Memories(store, self.writer, self.indexing)
        self.recall = Recall(
            readers=self._reader,
            embedder=FakeEmbedder(1),
            ranker=Ranker(BACKGROUND),
            injection=Injection(BACKGROUND, lambda _: 0),
            counters=self.counters,
            find=lambda namespace: self.indexing.namespaces.get(namespace),
            note=lambda question, ranked, body: None,
        )

    def _indexing(self) -> Indexing:
        return Indexing(
            folder=self.folder / "index",
            store=self.store,
            reader=Reader(self.store.path, self.store.model_id),
            writer=self.writer,
            embedder=FakeEmbedder(0),
            identity="test",
            counters=self.counters,
            config=IndexConfig(),
            when_idle=lambda work: work(),
        )

    def _reader(self) -> Reader:
        reader = CountingReader(self.store.path, self.store.model_id)
        reader.asked = self.asked
        return reader

    async def note(self, text: str, namespace: str = "main", category: str = "note", **attributes: Any) -> int:
        memory_id, _ = await self.memories.store_note(namespace, text, category, 1_000, Attributes(**attributes))
        return memory_id

    async def restart(self) -> None:
        """The indexes as a new daemon would have them."""
        await self.indexing.flush()
        self.indexing = self._indexing()
        self.memories = Memories(self.store, self.writer, self.indexing)
        await anyio.to_thread.run_sync(self.indexing.open_all)

    async def ask(self, query: str, *, settings: RecallSettings = SETTINGS, **fields: Any) -> ContextBody:
        await self.indexing.flush()
        answers: list[ContextBody] = []

        now = time.monotonic()
        fields = {"key": f"k{now}", "namespace": "main", "session": "s", **fields}
        self.asked.clear()
        self.recall.ask(
            Question(query=query, started=now, deadline=now + 20, answer=answers.append, settings=settings, **fields)
        )
        with anyio.fail_after(20):
            while not answers:  # noqa: ASYNC110  (answered in another thread)
                await anyio.sleep(0.001)
        return answers[0]

    async def given(self, query: str, **fields: Any) -> dict[int, str | None]:
        """What is given, in its order, and what else than its score brought it."""
        return {int(m.id[1:]): m.via for m in (await self.ask(query, **fields)).memories}


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    store = Store(tmp_path / "o.db")
    await store.open("test")
    house = House(tmp_path, store)
    house.recall.start()
    async with anyio.create_task_group() as tg:
        tg.start_soon(house.writer.run)
        yield house
        tg.cancel_scope.cancel()
    await anyio.to_thread.run_sync(house.recall.stop)
    await store.close()


def directed(then: Then, **when: Any) -> RecallSettings:
    return replace(SETTINGS, directives=(Directive(When(**when), then),))


# -- attributes


async def test_what_is_more_important_comes_first_among_equals(house: House) -> None:
    first = await house.note("the winter tyres: barn")
    second = await house.note("the winter tyres: cellar", importance=1.0)
    assert list(await house.given("where winter tyres")) == [second, first]
    assert list(await house.given("where winter tyres", limit=5)) == [second, first]


async def test_what_was_superseded_gives_its_place_to_its_successor(house: House) -> None:
    old = await house.note("Ada lives in Bergen")
    new = await house.note("moved to Oslo now")
    assert await house.memories.supersede("main", [old], new)
    assert await house.given("Ada lives in which town, Bergen") == {new: f"supersedes m{old}"}
    assert list(await house.given("Ada lives in Bergen", limit=5)) == [new]
    await house.memories.forget("main", new)
    assert await house.given("Ada lives in Bergen") == {}


async def test_what_is_said_of_memories_holds_for_the_same_question_at_once(house: House) -> None:
    old = await house.note("Ada lives in Bergen")
    new = await house.note("moved to Oslo now")
    await house.note("the ferry sails at nine")
    assert list(await house.given("Ada lives in Bergen")) == [old]
    assert list(await house.given("Ada lives in Bergen")) == [old]
    assert house.counters.cached == 1
    await house.memories.link("main", old, new, "related_to")
    assert set(await house.given("Ada lives in Bergen")) == {old, new}
    await house.memories.supersede("main", [old], new)
    assert set(await house.given("Ada lives in Bergen")) == {new}
    assert house.counters.cached == 1


async def test_what_has_expired_is_not_given_unless_it_is_pinned(house: House) -> None:
    memory = await house.note("the parcel is at the neighbour", expires_ms=2_000)
    assert await house.given("where is the parcel, neighbour") == {}
    assert await house.memories.set_attributes("main", memory, Attributes(pinned=True))
    assert list(await house.given("where is the parcel, neighbour")) == [memory]


async def test_the_superseded_do_not_shorten_a_ranked_list(house: House) -> None:
    kept = [await house.note(f"the boat is red, part {n}") for n in range(3)]
    old = [await house.note(f"the boat is blue, part {n}") for n in range(3)]
    await house.memories.supersede("main", old, kept[0])
    assert len(await house.given("boat blue part", limit=3)) == 3


async def test_the_same_note_again_takes_the_attributes_that_are_given(house: House) -> None:
    first = await house.note("the stopcock is behind the boiler", importance=0.2)
    assert await house.note("the stopcock is behind the boiler", pinned=True, entity="boiler") == first
    row = await house.store.memory("main", first)
    assert row is not None
    assert (bool(row.pinned), row.importance, row.entity, row.decay) == (True, 0.2, "boiler", "permanent")
    assert list(await house.given("tell me about the boiler", settings=replace(SETTINGS, floor=0.0))) == [first]


# -- entities


async def test_an_entity_in_the_prompt_proposes_its_newest_memories(house: House) -> None:
    notes = [await house.note(f"zeppelin {n}", entity="Project Atlas") for n in range(5)]
    reader = Reader(house.store.path, house.store.model_id)
    for again in (False, True):
        if again:
            await house.restart()
        known = house.indexing.namespaces["main"].entities
        offered = look_up(
            "main",
            "news of project atlas",
            terms("news of project atlas"),
            SETTINGS,
            known,
            reader,
            lambda *_: [],
            5_000,
            first=False,
        )
        assert sorted(offered.ids) == notes[-ENTITY_MEMORIES_MAX:]
        assert offered.directed == {}
    reader.close()


async def test_what_an_entity_proposes_is_scored_like_any_other(house: House) -> None:
    found = await house.note("the hull of it is red", entity="Atlas")
    await house.note("the winter tyres are in the barn", entity="Atlas")
    await house.indexing.flush()
    index = house.indexing.namespaces["main"]
    index.vectors, index.lexical = VectorIndex(), None  # which propose everything in so small a store
    assert await house.given("is the hull of Atlas red") == {found: None}


async def test_without_entities_directives_links_and_successions_nothing_more_is_read(house: House) -> None:
    await house.note("the winter tyres are in the barn")
    await house.given("where are the winter tyres")
    assert len(house.asked) == 1  # the rows of what is given


async def test_too_many_entities_are_counted(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recalld.core.entities.ENTITIES_MAX", 1)
    await house.note("one", entity="a")
    await house.note("two", entity="b")
    assert house.counters.ignored["entities_known"] == 1


# -- directives


async def test_a_directive_offers_a_category_an_entity_or_what_a_query_finds(house: House) -> None:
    await house.note("something else")
    rule = await house.note("never on fridays", category="rule")
    about = await house.note("likes tulips", entity="Ada Lovelace")
    list_ = await house.note("the deployment checklist: tests, notes, tag")
    for then, expected in (
        (Then(category="rule"), rule),
        (Then(entity="ada lovelace"), about),
        (Then(query="deployment checklist"), list_),
    ):
        settings = directed(then, keywords=("release",))
        assert await house.given("we release tomorrow", settings=settings) == {expected: "directive 1"}
        assert await house.given("we sleep tomorrow", settings=settings) == {}
        assert set((await house.given("we release tomorrow", settings=settings, limit=9)).values()) == {None}
    assert (
        await house.given("we go", settings=directed(Then(query="unknown things", entity=""), keywords=("go",))) == {}
    )


async def test_directives_are_bounded_together(house: House) -> None:
    for n in range(6):
        await house.note(f"rule {n}", category="rule")
        await house.note(f"plan {n}", category="plan")
    both = tuple(Directive(When(keywords=("go",)), Then(category=c), limit=3) for c in ("rule", "plan"))
    settings = replace(SETTINGS, directives=both, items_max=10)
    found = list((await house.given("we go", settings=settings)).values())
    assert sorted(via or "" for via in found) == ["directive 1"] * 3 + ["directive 2"]


async def test_a_session_starts_once(house: House) -> None:
    rule = await house.note("answer briefly", category="rule")
    settings = directed(Then(category="rule"), session_start=True)
    assert list(await house.given("hello there", settings=settings, session_id="1")) == [rule]
    assert await house.given("and then", settings=settings, session_id="1") == {}
    assert list(await house.given("hello again", settings=settings, session_id="2")) == [rule]
    assert list(await house.given("hello", settings=settings, session="other")) == [rule]


# -- links


async def test_a_linked_memory_comes_with_its_partner_while_there_is_room(house: House) -> None:
    partner = await house.note("the boat trip needs the trailer")
    linked = await house.note("tow bar at the garage until june")
    assert await house.memories.link("main", partner, linked, "depends_on")
    assert await house.given("boat trip trailer") == {partner: None, linked: f"depends_on m{partner}"}
    assert list(await house.given("boat trip trailer", settings=replace(SETTINGS, items_max=1))) == [partner]
    assert await house.given("boat trip trailer", limit=1) == {partner: None}
    assert await house.given("boat trip trailer", limit=2) == {partner: None, linked: None}
    await house.restart()
    assert list(await house.given("boat trip trailer")) == [partner, linked]


async def test_a_link_says_whether_it_was_made(house: House) -> None:
    one, two = await house.note("one"), await house.note("two")
    theirs = await house.note("theirs", "other")
    assert await house.memories.link("main", one, two, "part_of")
    assert await house.memories.link("main", one, two, "part_of")
    assert not await house.memories.link("main", one, theirs, "part_of")
    assert not await house.memories.link("main", one, one, "supersedes")
    assert not await house.memories.link("main", one, theirs, "supersedes")
    assert await house.memories.link("main", two, one, "supersedes")
    row = await house.store.memory("main", one)
    assert row is not None
    assert row.superseded_by == two
    others = [await house.note(f"number {n}") for n in range(LINKS_MAX)]
    made = [await house.memories.link("main", one, other, "related_to") for other in others]
    assert made == [True] * (LINKS_MAX - 1) + [False]


async def test_a_digest_holds_only_what_stands(house: House) -> None:
    old = await house.note("the boat is in Bergen")
    new = await house.note("a mooring was found at Oslo")
    await house.note("the parcel came", expires_ms=1)
    await house.memories.supersede("main", [old], new)
    assert list(await house.given("hello there", settings=replace(SETTINGS, cold_start="digest"))) == [new]


# -- namespaces


async def test_nothing_of_another_namespace_is_shown_whatever_the_record_says(house: House) -> None:
    mine = await house.note("the boat trip needs the trailer", entity="Atlas", category="rule")
    old = await house.note("where is the paddle: shed")
    theirs = await house.note("secret zeppelin plans", "other", entity="Atlas", category="rule")
    await house.note("mine", entity="Atlas")
    assert not await house.memories.supersede("main", [old], theirs)
    assert await house.store.commit(  # what no operation would write
        [
            [
                ("INSERT INTO links VALUES (?, ?, ?, 'part_of')", [("main", mine, theirs), ("other", mine, theirs)]),
                ("UPDATE memories SET superseded_by = ? WHERE id = ?", [(theirs, old)]),
            ]
        ]
    ) == [None]
    await house.restart()
    everything = replace(SETTINGS, floor=0.0, items_max=20)
    for then in (Then(category="rule"), Then(entity="Atlas"), Then(query="secret zeppelin plans")):
        settings = replace(everything, directives=(Directive(When(entities=("*",)), then),))
        found = await house.given("boat trip trailer paddle shed for Atlas", settings=settings)
        assert mine in found
        assert theirs not in found
        assert old not in found
    assert await house.given("boat trip trailer for Atlas", namespace="third") == {}


# -- later versions of a turn


async def test_what_a_later_version_of_a_turn_says_too_keeps_its_id_and_attributes(house: House) -> None:
    row = TurnRow(
        0, "main", "main", "s", None, 1, 2, "quiet", "ok", "captured", None, 0, "Ada", "Bo", "u", "", None, None
    )
    facts = [NewMemory("fact", f"fact {n}", "fact", entity="Ada") for n in range(2)]
    first = TurnWrite(row, ["r"], [NewMemory("turn", "Ada: u"), *facts], [])
    await house.memories.write_turns([first])
    turn, kept, gone = first.memory_ids
    await house.memories.set_attributes("main", kept, Attributes(pinned=True))
    await house.memories.link("main", turn, kept, "related_to")
    await house.memories.link("main", kept, gone, "related_to")
    later = TurnWrite(
        replace(row, revision=1), ["r"], [NewMemory("turn", "Ada: u\nBo: yes"), facts[0]], [], prior=first.row
    )
    await house.memories.write_turns([later])
    assert later.memory_ids == [gone + 1, kept]
    memories = await house.store.memories_of_turn(first.row.id)
    assert [(m.id, bool(m.pinned), m.entity) for m in memories] == [(kept, True, "Ada"), (gone + 1, False, None)]
    assert await house.store.links_from("main", kept) == []
    assert house.indexing.namespaces["main"].entities.named(terms("Ada")) == ["Ada"]
