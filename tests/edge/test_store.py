"""The record: groups, failures, migrations; real SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path

import anyio
import numpy as np
import pytest

from recalld.core.features import encode, features_of
from recalld.edge.migrations import MIGRATIONS
from recalld.edge.reader import Reader
from recalld.edge.store import Store, WritingConnection, migrate
from recalld.edge.units import Entry, MemoryRow, Statement, Unit, journal_unit, memories_unit, removal_unit
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
async def test_a_reader_sees_only_the_namespace_it_asks_for(store: Store) -> None:
    await store.commit([memory(1, "a"), memory(2, "b")])
    reader = Reader(store.path, store.model_id)
    assert [c.id for c in reader.candidates("a", [1, 2, 3])] == [1]
    assert reader.candidates("c", [1, 2]) == []
    assert [i for i, _ in reader.terms("b", 0, 10)] == [2]
    (entry,) = reader.entries("a", 0)
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
