"""The one place where memories are added and removed, so that record and indexes stay in step."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import anyio.to_thread
import msgspec

from recalld.edge.store import Store
from recalld.edge.units import (
    MemoryRow,
    TurnRow,
    Underived,
    Unit,
    forget_turn_unit,
    memories_unit,
    removal_unit,
    turn_unit,
)
from recalld.service.indexing import Indexing
from recalld.service.writer import Writer


class NewMemory(msgspec.Struct, frozen=True):
    kind: str
    text: str
    category: str | None = None


class TurnWrite(msgspec.Struct):
    """A turn to be stored with its memories. `prior` is its stored version, `release` what its commit makes needless."""

    row: TurnRow
    runs: list[str]
    memories: list[NewMemory]
    release: Unit
    prior: TurnRow | None = None
    memory_ids: list[int] = msgspec.field(default_factory=list)


class Memories:
    def __init__(self, store: Store, writer: Writer, indexing: Indexing) -> None:
        self._store = store
        self._writer = writer
        self._indexing = indexing
        self._lock = anyio.Lock()  # ids are committed and indexed in order: the indexes follow by the highest id

    async def write_turns(self, turns: Sequence[TurnWrite]) -> None:
        """Store turns in one unit; sets their ids. Raises StorageError, and then nothing is stored."""
        texts = [Underived(m.text, t.row.speaker, t.row.answerer) for t in turns for m in t.memories]
        entries = await anyio.to_thread.run_sync(self._indexing.derive, texts)
        async with self._lock:
            unit: Unit = []
            rows: list[MemoryRow] = []
            sessions: list[str | None] = []
            replaced: dict[int, list[int]] = {}
            memory_id, turn_id = self._store.next_memory_id, self._store.next_turn_id
            for number, turn in enumerate(turns):
                if turn.prior is None:
                    turn.row.id, turn_id = turn_id, turn_id + 1
                else:
                    turn.row.id = turn.prior.id
                    replaced[number] = [m.id for m in await self._store.memories_of_turn(turn.prior.id)]
                new = [
                    MemoryRow(
                        memory_id + i, turn.row.namespace, turn.row.id, m.kind, m.category, m.text, turn.row.opened_ms
                    )
                    for i, m in enumerate(turn.memories)
                ]
                turn.memory_ids = [m.id for m in new]
                share = entries[len(rows) : len(rows) + len(new)]
                unit += turn_unit(turn.row, turn.runs, new, share, self._store.model_id, replaced.get(number, []))
                unit += turn.release
                memory_id += len(new)
                rows += new
                sessions += [turn.row.session] * len(new)
            await self._writer.write(unit)
            self._store.next_memory_id, self._store.next_turn_id = memory_id, turn_id
            self._indexing.add(rows, entries, sessions)
            for number, ids in replaced.items():
                self._indexing.remove(turns[number].row.namespace, ids)

    async def store_note(self, namespace: str, text: str, category: str, now_ms: int) -> tuple[int, bool]:
        """(id, True), or (id of the same text, False). Raises StorageError."""
        entries = await anyio.to_thread.run_sync(self._indexing.derive, [Underived(text)])
        async with self._lock:
            known = await self._store.note_by_text(namespace, text)
            if known is not None:
                return known, False
            row = MemoryRow(self._store.next_memory_id, namespace, None, "note", category, text, now_ms)
            await self._writer.write(memories_unit([row], entries, self._store.model_id))
            self._store.next_memory_id += 1
            self._indexing.add([row], entries, [None])
            return row.id, True

    async def forget(self, namespace: str, memory_id: int) -> list[int] | None:
        """The ids that are gone (empty: they were gone before), None if there is no such memory. Raises StorageError."""
        async with self._lock:
            memory = await self._store.memory(namespace, memory_id)
            if memory is None:
                return [] if await self._store.was_forgotten(namespace, memory_id) else None
            ids = [memory_id]
            unit: Unit = []
            if memory.kind == "turn" and memory.turn_id is not None:
                ids = [m.id for m in await self._store.memories_of_turn(memory.turn_id)]
                unit = forget_turn_unit(memory.turn_id)
            await self._writer.write([*removal_unit(namespace, ids, forgotten=True), *unit])
            self._indexing.remove(namespace, ids)
            return ids
