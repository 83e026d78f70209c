"""The record: groups, failures, migrations; real SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from recalld.core.features import encode, features_of
from recalld.edge.migrations import MIGRATIONS
from recalld.edge.reader import Reader
from recalld.edge.store import Store, WritingConnection, migrate
from recalld.edge.units import (
    LINKS_MAX,
    Attributes,
    Entry,
    MemoryRow,
    Statement,
    Unit,
    attributes_unit,
    journal_unit,
    link_unit,
    memories_unit,
    removal_unit,
    supersede_unit,
    vectors_unit,
)
from recalld.errors import StorageError
from recalld.service.counters import Counters
from recalld.service.writer import Writer


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path / "s.db")
    await store.open("model-1")
    yield store
    await store.close()


def memory(n: int, namespace: str = "a") -> Unit:
    entry = Entry("term", np.full(256, 1 / 16, dtype=np.float32), encode(features_of("term", None, None)))
    return memories_unit([MemoryRow(n, namespace, None, "note", "note", f"text {n}", n)], [entry], 1)


@pytest.mark.anyio
async def test_a_bad_unit_fails_alone(store: Store) -> None:
    bad: Unit = [("INSERT INTO memories (id) VALUES (?)", [(9,)])]
    errors = await store.commit([memory(1), bad, memory(2)])
    assert [e is None for e in errors] == [True, False, True]
    assert [r[0] for r in await store.rows("SELECT id FROM memories ORDER BY id")] == [1, 2]


@pytest.mark.anyio
async def test_a_lock_of_others_is_waited_for_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[Sequence[Statement]] = []
    transact = WritingConnection._transact

    def counted(connection: WritingConnection, statements: Sequence[Statement]) -> None:
        attempts.append(statements)
        transact(connection, statements)

    monkeypatch.setattr(WritingConnection, "_transact", counted)
    assert store._writer is not None
    await store._writer.execute("PRAGMA busy_timeout = 1")
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        errors = await store.commit([memory(1), memory(2), memory(3)])
    assert ["another program holds it" in str(e) for e in errors] == [True] * 3
    assert len(attempts) == 1
    assert await store.commit([memory(1), memory(2), memory(3)]) == [None] * 3


@pytest.mark.anyio
async def test_a_full_database_says_so_and_works_again(store: Store) -> None:
    assert store._writer is not None
    pages = (await store.rows("PRAGMA page_count"))[0][0]
    await store._writer.execute_fetchall(f"PRAGMA max_page_count = {pages}")
    big: Unit = [("INSERT INTO sources VALUES (?, 1, ?, 0, 0)", [("s", b"x" * 2_000_000)])]
    (error,) = await store.commit([big])
    assert isinstance(error, StorageError)
    assert "free space" in str(error)
    await store._writer.execute_fetchall("PRAGMA max_page_count = 1000000")
    assert await store.commit([big]) == [None]


@pytest.mark.anyio
async def test_a_cancelled_writer_leaves_no_transaction_open(store: Store) -> None:
    with anyio.move_on_after(0.001):
        for n in range(1, 2_000):
            assert await store.commit([memory(n)]) == [None]
    assert store._writer is not None
    assert not store._writer.in_transaction
    assert await store.commit([memory(5_000)]) == [None]


@pytest.mark.anyio
async def test_the_writer_groups_what_waits_and_reports_a_fault_once(store: Store) -> None:
    counters = Counters()
    writer = Writer(store, counters)
    async with anyio.create_task_group() as tg:
        tg.start_soon(writer.run)
        async with anyio.create_task_group() as writes:
            for n in range(1, 500):
                writes.start_soon(writer.write, memory(n))
        assert (await store.rows("SELECT count(*) FROM memories"))[0][0] == 499
        with pytest.raises(StorageError):
            await writer.write([("INSERT INTO nowhere VALUES (?)", [(1,)])])
        assert "storage" in counters.faults
        await writer.write(memory(600))
        assert counters.faults == {}
        tg.cancel_scope.cancel()


@pytest.mark.anyio
async def test_the_journal_and_the_sources_come_back(store: Store) -> None:
    from recalld.core.sequence import Source
    from recalld.core.signals import Kind, Signal

    signals = [
        Signal(Kind.INPUT, "llm_input", 5, 6, "gw", seq=n, agent="a", namespace="a", session="s", user="hi")
        for n in (1, 3)
    ]
    unit = journal_unit(signals, {"gw": Source(1, frozenset({3}), 0)}, 7)
    assert await store.commit([unit, unit]) == [None, None]  # the same again changes nothing
    assert await store.journal() == signals
    source = (await store.sources())["gw"]
    assert (source.upto, source.above) == (1, {3})


@pytest.mark.anyio
async def test_ids_are_never_used_again(store: Store, tmp_path: Path) -> None:
    await store.commit([memory(1), memory(2), removal_unit("a", [2], forgotten=True)])
    assert await store.was_forgotten("a", 2)
    assert not await store.was_forgotten("b", 2)
    await store.close()
    again = Store(tmp_path / "s.db")
    await again.open("model-2")
    assert again.next_memory_id == 3
    assert again.model_id == 2
    reader = Reader(again.path, again.model_id)
    assert [row[0] for row in reader.underived(10)] == [1]  # another model has yet to derive it
    reader.close()
    await again.close()


@pytest.mark.anyio
async def test_a_memory_without_a_vector_waits_for_it_and_indexes_end_below_it(store: Store) -> None:
    await store.commit([memory(n) for n in (1, 2, 3)])
    await store.commit([[("UPDATE embeddings SET vector = NULL WHERE memory_id = 2", [()])]])
    reader = Reader(store.path, store.model_id)
    assert [(e.id, e.vector is not None) for e in reader.entries("a", 0)] == [(1, True), (2, False), (3, True)]
    assert reader.first_without_vector("a") == 2
    assert reader.first_without_vector("b") is None
    assert reader.without_vector(9) == [(2, "a", "text 2")]
    assert await store.commit([vectors_unit([2, 99], np.full((2, 256), 1 / 16, dtype=np.float32), 1)]) == [None]
    assert reader.without_vector(9) == []
    assert [e.id for e in reader.entries("a", 0) if e.vector is not None] == [1, 2, 3]  # and what is gone got none
    reader.close()


@pytest.mark.anyio
async def test_a_reader_sees_only_the_namespace_it_asks_for(store: Store) -> None:
    await store.commit([memory(1, "a"), memory(2, "b")])
    reader = Reader(store.path, store.model_id)
    assert [c.id for c in reader.candidates("a", [1, 2, 3])] == [1]
    assert reader.candidates("c", [1, 2]) == []
    assert [i for i, _ in reader.terms("b", 0, 10)] == [2]
    (entry,) = reader.entries("a", 0)
    assert entry.vector is not None
    assert (entry.id, entry.is_turn, entry.vector.shape) == (1, False, (256,))
    reader.close()


def test_every_migration_was_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    migrate(path)
    migrate(path)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT max(number) FROM migrations").fetchone() == (len(MIGRATIONS),)
        db.execute("UPDATE migrations SET digest = 'other'")
    db.close()
    with pytest.raises(StorageError, match="another migration 1"):
        migrate(path)


# -- attributes, successions, links


def note(n: int, namespace: str = "a", **attributes: Any) -> Unit:
    features = encode(features_of("term", None, None))
    entry = Entry(f"term{n} word", np.full(256, 1 / 16, dtype=np.float32), features)
    return memories_unit([MemoryRow(n, namespace, None, "note", "note", f"text {n}", n, **attributes)], [entry], 1)


@pytest.fixture
async def reader(store: Store) -> AsyncIterator[Reader]:
    reader = Reader(store.path, store.model_id)
    yield reader
    reader.close()


@pytest.mark.anyio
async def test_attributes_come_with_the_memory(store: Store, reader: Reader) -> None:
    given: dict[str, Any] = {"importance": 0.25, "confidence": 0.75, "decay": "short", "pinned": True, "expires_ms": 9}
    await store.commit([note(1), note(2, **given, superseded_by=1, entity="Ada", source="wiki/a.md")])
    usual, other = reader.candidates("a", [1, 2])
    assert (usual.importance, usual.confidence, usual.decay, usual.pinned) == (0.5, 1.0, "durable", False)
    assert (usual.expires_ms, usual.superseded_by, usual.source) == (None, None, None)
    assert {name: getattr(other, name) for name in given} == given
    assert (other.superseded_by, other.source) == (1, "wiki/a.md")
    row = await store.memory("a", 2)
    assert row is not None
    assert (row.entity, bool(row.pinned)) == ("Ada", True)


@pytest.mark.anyio
async def test_attributes_are_set_in_their_namespace_alone(store: Store, reader: Reader) -> None:
    await store.commit([note(1, "a", entity="Ada"), note(2, "b")])
    changed = Attributes(importance=1.0, entity=None, expires_ms=7)
    units = [attributes_unit(namespace, n, changed) for namespace, n in (("a", 1), ("a", 2))]
    assert await store.commit([*units, attributes_unit("a", 1, Attributes())]) == [None, None, None]
    mine, theirs = reader.candidates("a", [1])[0], reader.candidates("b", [2])[0]
    assert (mine.importance, mine.expires_ms, mine.confidence) == (1.0, 7, 1.0)
    assert (theirs.importance, theirs.expires_ms) == (0.5, None)
    assert reader.entities("a", 9) == []
    (error,) = await store.commit([attributes_unit("a", 1, Attributes(importance=2.0))])
    assert error is not None


@pytest.mark.anyio
async def test_a_succession_is_followed_to_what_stands(store: Store, reader: Reader) -> None:
    await store.commit([note(n) for n in (1, 2, 3, 4)])
    await store.commit([supersede_unit("a", [1], 2), supersede_unit("a", [2, 3], 4)])
    assert reader.successors("a", [1, 2, 3, 4]) == {1: 4, 2: 4, 3: 4}
    await store.commit([supersede_unit("a", [4], 1)])  # the first is true again
    assert reader.successors("a", [1, 2, 3, 4]) == {2: 1, 3: 1, 4: 1}
    assert (4, 3, "supersedes") in await store.links_from("a", 4)
    await store.commit([removal_unit("a", [1], forgotten=True)])
    assert reader.successors("a", [2, 3, 4]) == {}  # and what it superseded does not come back
    assert [c.superseded_by is None for c in reader.candidates("a", [2, 3, 4])] == [False] * 3


@pytest.mark.anyio
async def test_nothing_is_superseded_by_itself_or_from_elsewhere(store: Store, reader: Reader) -> None:
    await store.commit([note(1, "a"), note(2, "b"), note(3, "a")])
    await store.commit([supersede_unit("a", [1], 1), supersede_unit("a", [1], 2), supersede_unit("a", [2], 1)])
    assert [c.superseded_by for c in [*reader.candidates("a", [1, 3]), *reader.candidates("b", [2])]] == [None] * 3
    await store.commit([supersede_unit("a", [1], 3)])
    assert reader.successors("b", [1, 2, 3]) == {}


@pytest.mark.anyio
async def test_links_stay_in_their_namespace_and_are_bounded(store: Store, reader: Reader) -> None:
    await store.commit([note(n) for n in range(1, LINKS_MAX + 4)])
    await store.commit([note(90, "b"), note(91, "b")])
    assert not reader.has_links("a")
    await store.commit(
        [link_unit("a", [(1, 90, "part_of"), (90, 91, "part_of"), (1, 1, "part_of"), (1, 77, "part_of")])]
    )
    assert await store.links_from("a", 1) == await store.links_from("a", 90) == []
    await store.commit([link_unit("b", [(90, 91, "part_of")]), link_unit("a", [(2, 3, "supersedes")])])
    assert not reader.has_links("a")  # a succession is no link that recall follows
    await store.commit([link_unit("a", [(1, n, "related_to") for n in range(2, LINKS_MAX + 4)])])
    assert len(await store.links_from("a", 1)) == LINKS_MAX
    assert reader.has_links("a")
    assert reader.links("a", [5, 90]) == [(1, 5, "related_to")]
    assert reader.links("b", [1, 90]) == [(90, 91, "part_of")]
    await store.commit([removal_unit("a", [5], forgotten=True), removal_unit("a", [90], forgotten=True)])
    assert reader.links("a", [5]) == []
    assert len(reader.links("b", [90])) == 1


@pytest.mark.anyio
async def test_a_bad_link_or_class_is_refused_by_the_record(store: Store) -> None:
    bad_link: Any = (1, 2, "likes")
    bad_class: Any = "slow"
    await store.commit([note(1), note(2)])
    errors = await store.commit([link_unit("a", [bad_link]), note(3, decay=bad_class)])
    assert [error is not None for error in errors] == [True, True]


@pytest.mark.anyio
async def test_the_newest_of_an_entity_or_category_stand_and_are_of_the_namespace(store: Store, reader: Reader) -> None:
    await store.commit([note(n, entity="Ada") for n in range(1, 5)])
    await store.commit(
        [
            note(5, entity="Ada", superseded_by=1),
            note(6, entity="Ada", expires_ms=50),
            note(7, entity="Ada", expires_ms=50, pinned=True),
            note(8, "b", entity="Ada"),
        ]
    )
    assert reader.newest_about("a", "entity", "Ada", 100, 2) == [7, 4]
    assert reader.newest_about("a", "category", "note", 100, 3) == [7, 4, 3]
    assert reader.newest_about("b", "entity", "Ada", 100, 9) == [8]
    assert reader.newest_about("a", "entity", "Bo", 100, 9) == []
    assert reader.standing_terms("a", [4, 5, 6, 8], 100) == {4: "term4 word"}
    assert reader.entities("a", 9) == ["Ada"]
    assert reader.entities("c", 9) == []


@pytest.mark.anyio
async def test_look_ups_go_through_an_index(store: Store) -> None:
    for column, index in (("entity", "memories_of_entity"), ("category", "memories_of_category")):
        plan = await store.rows(
            f"EXPLAIN QUERY PLAN SELECT id FROM memories WHERE namespace = 'a' AND {column} = 'x' AND superseded_by IS NULL"
            " AND (expires_ms IS NULL OR expires_ms > 1 OR pinned) ORDER BY created_ms DESC LIMIT 2"
        )
        assert f"USING INDEX {index}" in str(plan)
        assert "TEMP B-TREE" not in str(plan)
    plan = await store.rows("EXPLAIN QUERY PLAN DELETE FROM links WHERE namespace = 'a' AND (from_id = 1 OR to_id = 1)")
    assert "SCAN" not in str(plan)
