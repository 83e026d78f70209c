"""The writer before a disk that is stuck: the fault is seen, nothing is written twice, and a stop waits for one commit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import anyio
import pytest

from recalld.edge.store import Store
from recalld.edge.units import Unit
from recalld.errors import StorageError
from recalld.service import writer as module
from recalld.service.counters import Counters
from recalld.service.writer import UNITS_MAX, Writer


class StuckStore(Store):
    """A store whose commits begin, and come to an end once it is `released`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.begun = anyio.Event()
        self.released = anyio.Event()
        self.commits = 0

    async def commit(self, units: Sequence[Unit]) -> list[StorageError | None]:
        self.commits += 1
        self.begun.set()
        with anyio.CancelScope(shield=True):
            await self.released.wait()
        return await super().commit(units)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[StuckStore]:
    store = StuckStore(tmp_path / "w.db")
    await store.open("model")
    yield store
    await store.close()


def unit(name: str) -> Unit:
    return [("INSERT INTO sources VALUES (?, 1, x'90', 0, 0)", [(name,)])]


async def stored(store: Store) -> list[str]:
    return [row[0] for row in await store.rows("SELECT src FROM sources ORDER BY src")]


@pytest.mark.anyio
async def test_a_commit_that_does_not_return_is_a_fault_until_it_does(
    store: StuckStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STUCK_SECONDS", 0.01)
    counters, acknowledged = Counters(), list[str]()
    writer = Writer(store, counters)

    async def write() -> None:
        await writer.write(unit("gw"))
        acknowledged.append("gw")

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tg:
            tg.start_soon(writer.run)
            async with anyio.create_task_group() as writes:
                writes.start_soon(write)
                await store.begun.wait()
                while "storage" not in counters.faults:
                    await anyio.lowlevel.checkpoint()
                assert str(store.path) in counters.faults["storage"]
                assert acknowledged == []
                store.released.set()
            tg.cancel_scope.cancel()
    assert counters.faults == {}
    assert acknowledged == await stored(store) == ["gw"]
    assert store.commits == 1


@pytest.mark.anyio
async def test_a_stop_waits_for_the_commit_under_way_and_begins_no_other(store: StuckStore) -> None:
    writer = Writer(store, Counters())
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tg:
            for number in range(UNITS_MAX + 1):
                tg.start_soon(writer.write, unit(f"{number:04}"))
            tg.start_soon(writer.run)
            await store.begun.wait()
            tg.cancel_scope.cancel()
            store.released.set()
    assert store.commits == 1
    assert await stored(store) == [f"{number:04}" for number in range(UNITS_MAX)]
