"""Keeps the indexes behind the record: catches up at start, follows each commit, has snapshots made, repairs damage."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import PIPE

import anyio
import anyio.to_thread
import numpy as np

from recalld import log
from recalld.config import IndexConfig
from recalld.core.entities import ENTITIES_MAX, Entities
from recalld.core.features import encode, features_of
from recalld.core.words import terms
from recalld.edge.embed import Embedder, Vectors
from recalld.edge.features import Entry as FeatureEntry
from recalld.edge.features import FeatureIndex, ids_and_vectors, session_number
from recalld.edge.files import folder_name
from recalld.edge.lexical import LexicalIndex, LexicalState
from recalld.edge.reader import Reader
from recalld.edge.rebuild import catch_up
from recalld.edge.store import Store
from recalld.edge.units import Entry, MemoryRow, Underived, entries_unit, vectors_unit
from recalld.edge.vectors import Snapshot, VectorIndex
from recalld.errors import EmbedderError, StorageError
from recalld.service.counters import Counters
from recalld.service.embedding import embed_texts
from recalld.service.writer import Writer

DERIVE_ROWS = 512
EMBED_ROWS = 64  # vectors made and committed at a time: a second of a model on the processor, two requests of a server
RETRY_SECONDS = 5.0


_generations = itertools.count(1)  # of all namespaces: an index that was made anew has none of the old one's


class NamespaceIndex:
    """The indexes of one namespace, and what they have yet to take in. `generation` is another one as soon as a question
    could find something else."""

    def __init__(self, namespace: str, folder: Path) -> None:
        self.namespace = namespace
        self.folder = folder
        self.lexical: LexicalIndex | None = None
        self.broken = False  # the word index cannot be written; recall goes on with vectors alone
        self.vectors = VectorIndex()
        self.features = FeatureIndex()
        self.added: list[tuple[int, str]] = []
        self.removed: list[int] = []
        self.entities = Entities()
        self.linked = False  # whether there are links that recall follows
        self.generation = next(_generations)
        self.newest = 0  # the highest id that it has taken in

    def changed(self) -> None:
        self.generation = next(_generations)


class Indexing:
    def __init__(
        self,
        *,
        folder: Path,
        store: Store,
        reader: Reader,
        writer: Writer,
        embedder: Embedder,
        identity: str,
        counters: Counters,
        config: IndexConfig,
        when_idle: Callable[[Callable[[], None]], None],
        retry_s: float = RETRY_SECONDS,
    ) -> None:
        """`when_idle` runs a function in recall's keeper while no prompt waits, and returns when it is done. `retry_s`:
        how long an embedder that failed is left alone."""
        self._folder = folder
        self._store = store
        self._reader = reader
        self._writer = writer
        self._embedder = embedder
        self._identity = identity
        self._counters = counters
        self._config = config
        self._when_idle = when_idle
        self._retry_s = retry_s
        self._vectors_wanted = anyio.Event()
        self._vectors_made = anyio.Event()  # all of them, or all that can be made now
        self._wake = anyio.Event()
        self._flushing = anyio.Lock()
        self._snapshotting = anyio.Lock()
        self._log = log.get("indexing")
        self.namespaces: dict[str, NamespaceIndex] = {}

    # -- start

    def open_all(self) -> None:
        """Open and catch up every namespace of the record. Blocking."""
        for namespace in self._reader.namespaces():
            self.namespaces[namespace] = self._open(namespace)

    def _open(self, namespace: str) -> NamespaceIndex:
        index = NamespaceIndex(namespace, self._folder / folder_name(namespace))
        try:
            catch_up(self._open_words(index), namespace, self._reader)
        except (OSError, ValueError) as e:
            self._not_written(index, e)
        snapshot = self._load_snapshot(index)
        if snapshot:
            index.features.take(snapshot.features_path)
        entries = list(self._reader.entries(namespace, snapshot.header.memory_id if snapshot else 0))
        index.features.add(entries)
        index.newest = max([snapshot.header.memory_id if snapshot else 0, *(e.id for e in entries)])
        if snapshot:
            index.features.remove(m for _, m in self._reader.tombstones(namespace, snapshot.header.tombstone_id))
            index.vectors.take(snapshot, *ids_and_vectors(entries))
        else:
            index.vectors.add(*ids_and_vectors(entries))
        for entity in self._reader.entities(namespace, ENTITIES_MAX):
            index.entities.add(entity)
        index.linked = self._reader.has_links(namespace)
        return index

    def _open_words(self, index: NamespaceIndex) -> LexicalIndex:
        if index.lexical is None:
            index.lexical = LexicalIndex(index.folder / "lexical")
            if index.lexical.rebuilt:
                self._log.warning("word index rebuilt", namespace=index.namespace, reason=index.lexical.rebuilt)
        return index.lexical

    def _load_snapshot(self, index: NamespaceIndex) -> Snapshot | None:
        folder = index.folder / "vectors"
        if not (folder / "snapshot.json").exists():
            return None
        try:
            snapshot = Snapshot(folder, self._identity)
            snapshot.open()
        except (OSError, ValueError) as e:
            self._log.warning("vector snapshot dropped: it will be made anew", namespace=index.namespace, reason=str(e))
            shutil.rmtree(folder, ignore_errors=True)
            return None
        return snapshot

    # -- following the record; called in the event loop, after the commit

    def add(self, memories: Sequence[MemoryRow], entries: Sequence[Entry], sessions: Sequence[str | None]) -> None:
        """Memories that are committed, in the order of their ids, with the session of each. Vectors are findable at once
        if they are there, words within commit_ms."""
        for memory, entry, session in zip(memories, entries, sessions, strict=True):
            index = self.namespaces.get(memory.namespace)
            if index is None:
                index = self.namespaces[memory.namespace] = NamespaceIndex(
                    memory.namespace, self._folder / folder_name(memory.namespace)
                )
            if memory.id > index.newest:  # else the index was made from a record that had it already
                index.newest = memory.id
                self._add_entry(index, memory, entry, session)
            index.added.append((memory.id, entry.terms))
            if memory.entity:
                self.know(memory.namespace, memory.entity)
            index.changed()
        if memories:
            self._wake.set()

    def _add_entry(self, index: NamespaceIndex, memory: MemoryRow, entry: Entry, session: str | None) -> None:
        vector = None if entry.vector is None else entry.vector.astype(np.float16)
        is_turn = memory.kind == "turn"
        index.features.add(
            [FeatureEntry(memory.id, session_number(session), is_turn, memory.created_ms, entry.features, vector)]
        )
        if entry.vector is None:
            self._want_vectors()
        else:
            index.vectors.add([memory.id], entry.vector[None, :])

    def know(self, namespace: str, entity: str) -> None:
        """A memory of the namespace is about this entity."""
        if (index := self.namespaces.get(namespace)) is not None and not index.entities.add(entity):
            self._counters.ignored["entities_known"] += 1

    def changed(self, namespace: str) -> None:
        """What the record says of memories of the namespace is not what it was."""
        if (index := self.namespaces.get(namespace)) is not None:
            index.changed()

    def link(self, namespace: str) -> None:
        """The namespace has links that recall follows."""
        if (index := self.namespaces.get(namespace)) is not None:
            index.linked = True

    def remove(self, namespace: str, memory_ids: Sequence[int]) -> None:
        """Memories whose removal is committed. Recall does not find them from now on: the record lacks them."""
        if (index := self.namespaces.get(namespace)) is not None and memory_ids:
            index.removed.extend(memory_ids)
            index.features.remove(memory_ids)
            index.changed()
            self._wake.set()

    # -- tasks

    async def run(self) -> None:
        """Commit to the word indexes at a steady pace, and have snapshots made, until cancelled."""
        async with anyio.create_task_group() as tg:
            tg.start_soon(self._catch_up_vectors)
            while True:
                await self._wake.wait()
                self._wake = anyio.Event()
                await anyio.sleep(self._config.commit_ms / 1000)
                if not await self.flush():
                    await anyio.sleep(RETRY_SECONDS)
                    self._wake.set()

    async def flush(self) -> bool:
        """Make everything committed so far findable by its words. False where an index could not be written."""
        async with self._flushing:
            results = [await self._flush_one(index) for index in list(self.namespaces.values())]
        return all(results)

    async def _flush_one(self, index: NamespaceIndex) -> bool:
        if not index.added and not index.removed:
            return True
        added, removed = index.added, index.removed
        index.added, index.removed = [], []
        try:
            tombstone_id = await self._store.last_tombstone(index.namespace)
            await anyio.to_thread.run_sync(self._apply, index, added, removed, tombstone_id)
        except (OSError, ValueError, StorageError) as e:
            index.added, index.removed = added + index.added, removed + index.removed
            self._not_written(index, e)
            return False
        index.broken = False
        index.changed()
        self._counters.faults.pop("word index", None)
        return True

    def _apply(
        self, index: NamespaceIndex, added: list[tuple[int, str]], removed: list[int], tombstone_id: int
    ) -> None:
        words = self._open_words(index)
        memory_id = added[-1][0] if added else words.state.memory_id
        words.apply(added, removed, LexicalState(memory_id, tombstone_id if removed else words.state.tombstone_id))

    def _not_written(self, index: NamespaceIndex, e: Exception) -> None:
        index.broken = True
        self._counters.faults["word index"] = f"{index.folder}: {e}; recall goes on with vectors alone"
        self._log.error("word index not written", namespace=index.namespace, error=str(e))

    async def _catch_up_vectors(self) -> None:
        """What another analyser or model derived, or none, until cancelled; snapshots once every memory has its row."""
        reader = Reader(self._store.path, self._store.model_id)
        await self._derive_missing(reader)
        async with anyio.create_task_group() as tg:
            tg.start_soon(self._make_snapshots)
            while True:
                self._vectors_wanted = anyio.Event()
                await self._make_vectors(reader)
                self._vectors_made.set()
                await self._vectors_wanted.wait()

    async def _derive_missing(self, reader: Reader) -> None:
        """Terms and features, and vectors if they take no time, of memories that have no row of this model and analyser."""
        done, more = 0, True
        while more:
            try:
                rows = await anyio.to_thread.run_sync(reader.underived, DERIVE_ROWS)
                entries = await anyio.to_thread.run_sync(self.derive, [row[1] for row in rows])
                await self._writer.write(entries_unit([row[0] for row in rows], entries, self._store.model_id))
            except StorageError:
                await anyio.sleep(RETRY_SECONDS)
                continue
            done, more = done + len(rows), bool(rows)
        if done:
            async with self._flushing:
                for old in list(self.namespaces.values()):
                    self._replace(old, await anyio.to_thread.run_sync(self._rebuild, old))
            self._log.info("derived anew, indexes rebuilt", memories=done, identity=self._identity)

    def _rebuild(self, old: NamespaceIndex) -> NamespaceIndex:
        """All of it from the record; the old one serves until the new one takes its place."""
        if old.lexical is not None:
            old.lexical.close()
        shutil.rmtree(old.folder, ignore_errors=True)
        return self._open(old.namespace)

    def _replace(self, old: NamespaceIndex, new: NamespaceIndex) -> None:
        """In the event loop, in one step. What was committed while the new one was made is in the old one."""
        newer = old.features.newer(new.newest)
        new.features.add(newer)
        new.vectors.add(*ids_and_vectors(newer))
        new.newest = old.newest = max(old.newest, new.newest)
        new.added, new.removed = old.added, old.removed
        new.features.remove(old.removed)
        self.namespaces[new.namespace] = new

    async def reindex(self, namespace: str, *, words: bool, vectors: bool) -> None:
        """Make a namespace's indexes anew from the record while it is served by the old ones. Raises StorageError."""
        index = self.namespaces.get(namespace)
        if index is None:
            return
        if words:
            await self._words_anew(index)
        if vectors and not await self.make_snapshot(index, anew=True):
            raise StorageError(self._counters.faults.get("snapshot", "the vector snapshot was not made"))

    async def _words_anew(self, index: NamespaceIndex) -> None:
        new = index.folder / "lexical.new"
        database, model_id = str(self._store.path), str(self._store.model_id)
        try:
            shutil.rmtree(new, ignore_errors=True)
            await self._in_process("recalld.edge.rebuild", database, index.namespace, model_id, str(new))
            async with self._flushing:
                await anyio.to_thread.run_sync(self._take_words, index, new)
        except (OSError, ValueError) as e:
            raise StorageError(f"the word index {index.folder} was not made anew: {e}") from None
        index.changed()
        self._log.info("word index made anew", namespace=index.namespace)

    def _take_words(self, index: NamespaceIndex, new: Path) -> None:
        """What came since it was made is taken in with the next flush, or here."""
        folder, aside = index.folder / "lexical", index.folder / "lexical.old"
        if index.lexical is not None:
            index.lexical.close()  # it is searched until the new one is there
        shutil.rmtree(aside, ignore_errors=True)
        if folder.exists():
            folder.rename(aside)
        new.rename(folder)
        reader = Reader(self._store.path, self._store.model_id)
        try:
            words = LexicalIndex(folder)
            catch_up(words, index.namespace, reader)
        finally:
            reader.close()
        index.lexical = words
        shutil.rmtree(aside, ignore_errors=True)

    async def _in_process(self, module: str, *arguments: str) -> None:
        """Run one of our modules in a process of its own. Raises ValueError with the last line of what it complained of."""
        done = await anyio.run_process([sys.executable, "-m", module, *arguments], check=False, stderr=PIPE)
        if done.returncode != 0:
            raise ValueError("".join(done.stderr.decode(errors="replace").strip().splitlines()[-1:]))

    async def _make_vectors(self, reader: Reader) -> None:
        """Vectors of what was stored without, in order, until there is none; while the embedder fails, ask it again."""
        done = 0
        while True:
            try:
                rows = await anyio.to_thread.run_sync(reader.without_vector, EMBED_ROWS)
                if not rows:
                    break
                vectors = await embed_texts(self._embedder, [row[2] for row in rows])
                await self._writer.write(vectors_unit([row[0] for row in rows], vectors, self._store.model_id))
            except StorageError:
                await anyio.sleep(RETRY_SECONDS)
            except Exception as e:
                await self._vectors_failed(e)
            else:
                self._add_vectors(rows, vectors)
                done += len(rows)
        if self._counters.faults.pop("vectors", None):
            self._log.info("vectors are made again")
        if done >= EMBED_ROWS:
            self._log.info("vectors made", memories=done, identity=self._identity)

    async def _vectors_failed(self, e: Exception) -> None:
        """Tell people, and wait a while; what was stored meanwhile is found by its words."""
        if not isinstance(e, EmbedderError):
            self._log.exception("vectors not made")
        elif "vectors" not in self._counters.faults:
            self._log.error("vectors not made", error=str(e), retry_s=self._retry_s)
        self._counters.faults["vectors"] = f"{e}; what is stored waits for its vectors and is found by its words"
        self._vectors_made.set()
        await anyio.sleep(self._retry_s)

    def _want_vectors(self) -> None:
        if self._vectors_made.is_set():
            self._vectors_made = anyio.Event()
        self._vectors_wanted.set()

    def _add_vectors(self, rows: Sequence[tuple[int, str, str]], vectors: Vectors) -> None:
        for (memory_id, namespace, _), vector in zip(rows, vectors, strict=True):
            if (index := self.namespaces.get(namespace)) is not None:
                index.features.set_vector(memory_id, vector)
                if vector.any():
                    index.vectors.add([memory_id], vector[None, :])
                index.changed()

    async def vectors_made(self) -> None:
        """Return when what is stored has its vectors, or the embedder fails."""
        await self._vectors_made.wait()

    def derive(self, texts: Sequence[Underived]) -> list[Entry]:
        """What texts are found and scored by. Blocking; for a worker thread."""
        later = self._embedder.later or not texts
        vectors = [None] * len(texts) if later else self._embedder.embed([t.text for t in texts])
        return [
            Entry(" ".join(terms(t.text)), vector, encode(features_of(*t)))
            for t, vector in zip(texts, vectors, strict=True)
        ]

    async def _make_snapshots(self) -> None:
        while True:
            await anyio.sleep(RETRY_SECONDS)
            for index in list(self.namespaces.values()):
                if len(index.vectors.tail) >= max(self._config.snapshot_items, len(index.vectors) // 10):
                    await self.make_snapshot(index)

    async def make_snapshot(self, index: NamespaceIndex, *, anew: bool = False) -> bool:
        """Have a snapshot made by another process, and take it in when no prompt waits. `anew`: not from the last one."""
        folder = index.folder / "vectors"
        self._log.info("snapshot started", namespace=index.namespace, newer=len(index.vectors.tail))
        arguments = [str(self._store.path), index.namespace, self._identity, str(folder)]
        arguments += [str(self._config.snapshot_threads), *(["anew"] if anew else [])]
        try:
            async with self._snapshotting:
                await self._in_process("recalld.edge.snapshot", *arguments)
                await anyio.to_thread.run_sync(self._take_in, index, folder)
        except (OSError, ValueError, StorageError, RuntimeError) as e:
            self._counters.faults["snapshot"] = f"{folder}: {e}; recall goes on without it"
            self._log.error("snapshot failed", namespace=index.namespace, error=str(e))
            return False
        self._counters.faults.pop("snapshot", None)
        self._log.info(
            "snapshot taken in", namespace=index.namespace, memories=len(index.vectors), newer=len(index.vectors.tail)
        )
        return True

    def _take_in(self, index: NamespaceIndex, folder: Path) -> None:
        snapshot = Snapshot(folder, self._identity)
        index.vectors.begin_take()
        reader = Reader(self._store.path, self._store.model_id)
        newer = ids_and_vectors(list(reader.entries(index.namespace, snapshot.header.memory_id)))
        reader.close()
        self._when_idle(snapshot.open)
        index.vectors.take(snapshot, *newer)
        index.features.take(snapshot.features_path)
