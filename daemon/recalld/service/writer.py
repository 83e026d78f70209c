"""The one writer: units of writing from everywhere, committed in groups. A unit is acknowledged when it is on disk."""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel

from recalld import log
from recalld.edge.store import Store
from recalld.edge.units import Unit
from recalld.errors import StorageError
from recalld.service.counters import Counters

UNITS_MAX = 256  # in one transaction
WAITING_MAX = 4_096  # beyond it a write fails with StorageError instead of waiting
GROUP_SECONDS = 0.002  # a lone unit waits this long for company; a commit costs 0.1 to 8 ms
CHECKPOINT_SECONDS = 30.0
STUCK_SECONDS = 30.0


class Writer:
    def __init__(self, store: Store, counters: Counters) -> None:
        self._store = store
        self._counters = counters
        self._waiting: list[tuple[Unit, asyncio.Future[None]]] = []
        self._wake = anyio.Event()
        self._log = log.get("writer")

    async def write(self, unit: Unit) -> None:
        """Return when the unit is on disk. Raises StorageError if it is not."""
        if len(self._waiting) >= WAITING_MAX:
            raise StorageError(f"{WAITING_MAX} writes are waiting for the disk: it is too slow or stuck")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((unit, done))
        self._wake.set()
        await done

    async def run(self) -> None:
        """Write until cancelled. A commit under way comes to its end; what waits behind it was acknowledged to nobody."""
        while True:
            await anyio.lowlevel.checkpoint_if_cancelled()  # a commit is shielded: it does not notice
            if not self._waiting:
                self._wake = anyio.Event()
                with anyio.move_on_after(CHECKPOINT_SECONDS):
                    await self._wake.wait()
                if not self._waiting:
                    await self._checkpoint()
                    continue
                await anyio.sleep(GROUP_SECONDS)
            group, self._waiting = self._waiting[:UNITS_MAX], self._waiting[UNITS_MAX:]
            errors = await self._commit([unit for unit, _ in group])
            for (_, done), error in zip(group, errors, strict=True):
                if done.done():
                    continue
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)
            self._report(next((e for e in errors if e is not None), None))

    async def _commit(self, units: list[Unit]) -> list[StorageError | None]:
        """However long the disk takes; from STUCK_SECONDS on it is a fault that people see."""
        stuck = StorageError(f"the database {self._store.path} takes more than {STUCK_SECONDS:.0f} s: look at its disk")
        alarm = asyncio.get_running_loop().call_later(STUCK_SECONDS, self._report, stuck)
        try:
            return await self._store.commit(units)
        finally:
            alarm.cancel()

    async def _checkpoint(self) -> None:
        try:
            await self._store.checkpoint()
        except StorageError as e:
            self._log.warning("checkpoint failed", error=str(e))

    def _report(self, error: StorageError | None) -> None:
        if error is None:
            if self._counters.faults.pop("storage", None):
                self._log.info("storage works again")
        elif self._counters.faults.get("storage") != str(error):
            self._counters.faults["storage"] = str(error)
            self._log.error("write failed", error=str(error))
