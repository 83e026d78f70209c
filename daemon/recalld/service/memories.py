"""The one place where memories are added and removed, so that record and indexes stay in step."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import anyio.to_thread
import msgspec

from recalld.core.policy import LinkType
from recalld.edge.store import Store
from recalld.edge.units import (
    Attributes,
    Entry,
    MemoryRow,
    TurnRow,
    Underived,
    Unit,
    attributes_unit,
    forget_turn_unit,
    link_unit,
    memories_unit,
    removal_unit,
    supersede_unit,
    turn_unit,
)
from recalld.service.indexing import Indexing
from recalld.service.writer import Writer
from recalld.wire.messages import Decay


class NewMemory(msgspec.Struct, frozen=True):
    kind: str
    text: str
    category: str | None = None
    importance: float = 0.5
    confidence: float = 1.0
    decay: Decay = "durable"
    expires_ms: int | None = None
    entity: str | None = None
    source: str | None = None


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
        derived = await anyio.to_thread.run_sync(self._indexing.derive, texts)
        async with self._lock:
            unit: Unit = []
            rows: list[MemoryRow] = []
            entries: list[Entry] = []
            sessions: list[str | None] = []
            removed: list[tuple[str, list[int]]] = []
            memory_id, turn_id, offset = self._store.next_memory_id, self._store.next_turn_id, 0
            for turn in turns:
                prior = await self._store.memories_of_turn(turn.prior.id) if turn.prior else []
                if turn.prior is None:
                    turn.row.id, turn_id = turn_id, turn_id + 1
                else:
                    turn.row.id = turn.prior.id
                same = {(m.kind, m.text): m.id for m in prior}  # they stay, with their ids, attributes and links
                turn.memory_ids, new, share = [], [], []
                for number, memory in enumerate(turn.memories, offset):
                    known = same.pop((memory.kind, memory.text), None)
                    turn.memory_ids.append(memory_id if known is None else known)
                    if known is None:
                        new.append(_row(memory_id, turn.row, memory))
                        share.append(derived[number])
                        memory_id += 1
                gone = list(same.values())
                unit += turn_unit(turn.row, turn.runs, new, share, self._store.model_id, gone)
                unit += turn.release
                offset += len(turn.memories)
                rows += new
                entries += share
                sessions += [turn.row.session] * len(new)
                removed.append((turn.row.namespace, gone))
            await self._writer.write(unit)
            self._store.next_memory_id, self._store.next_turn_id = memory_id, turn_id
            self._indexing.add(rows, entries, sessions)
            for namespace, gone in removed:
                self._indexing.remove(namespace, gone)

    async def store_note(
        self, namespace: str, text: str, category: str, now_ms: int, attributes: Attributes
    ) -> tuple[int, bool]:
        """(id, True), or (id of the same text, False), which then has these attributes too. Raises StorageError."""
        entries = await anyio.to_thread.run_sync(self._indexing.derive, [Underived(text)])
        async with self._lock:
            known = await self._store.note_by_text(namespace, text)
            if known is not None:
                await self._set(namespace, known, attributes)
                return known, False
            row = MemoryRow(
                self._store.next_memory_id, namespace, None, "note", category, text, now_ms, decay="permanent"
            )
            row = msgspec.structs.replace(row, **attributes.given())
            await self._writer.write(memories_unit([row], entries, self._store.model_id))
            self._store.next_memory_id += 1
            self._indexing.add([row], entries, [None])
            return row.id, True

    async def set_attributes(self, namespace: str, memory_id: int, attributes: Attributes) -> bool:
        """False if the namespace has no such memory. Raises StorageError."""
        async with self._lock:
            if await self._store.memory(namespace, memory_id) is None:
                return False
            await self._set(namespace, memory_id, attributes)
            return True

    async def _set(self, namespace: str, memory_id: int, attributes: Attributes) -> None:
        unit = attributes_unit(namespace, memory_id, attributes)
        if unit:
            await self._writer.write(unit)
        if attributes.entity:
            self._indexing.know(namespace, attributes.entity)
        self._indexing.changed(namespace)

    async def supersede(self, namespace: str, memory_ids: Sequence[int], successor: int) -> bool:
        """Have one memory hold instead of others. False if the namespace lacks it; others that it lacks change nothing.

        Raises StorageError.
        """
        async with self._lock:
            if await self._store.memory(namespace, successor) is None:
                return False
            await self._writer.write(supersede_unit(namespace, memory_ids, successor))
            self._indexing.changed(namespace)
            return True

    async def link(self, namespace: str, from_id: int, to_id: int, kind: LinkType) -> bool:
        """Link two memories; the one `supersedes` the other as `supersede` has it. False if the namespace lacks one of
        them, they are the same, or the first has LINKS_MAX links. Raises StorageError."""
        if kind == "supersedes":
            known = from_id != to_id and await self._store.memory(namespace, to_id) is not None
            return known and await self.supersede(namespace, [to_id], from_id)
        async with self._lock:
            await self._writer.write(link_unit(namespace, [(from_id, to_id, kind)]))
            if (from_id, to_id, kind) not in await self._store.links_from(namespace, from_id):
                return False
            self._indexing.link(namespace)
            self._indexing.changed(namespace)
            return True

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


def _row(memory_id: int, turn: TurnRow, memory: NewMemory) -> MemoryRow:
    return MemoryRow(
        id=memory_id,
        namespace=turn.namespace,
        turn_id=turn.id,
        created_ms=turn.opened_ms,
        **msgspec.structs.asdict(memory),
    )
