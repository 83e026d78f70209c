"""The record: SQLite in WAL mode, one writer with group commit, readers beside it. All else is derived from it."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiosqlite
import anyio
import msgspec
import numpy as np
from msgspec import Struct

from recalld.core.rank import Counts, Numbers, numbers_of
from recalld.core.sequence import Source
from recalld.core.signals import Signal
from recalld.edge.embed import DIMENSIONS, Vector, Vectors
from recalld.edge.migrations import MIGRATIONS
from recalld.errors import StorageError

Statement = tuple[str, Sequence[Sequence[Any]]]
Unit = list[Statement]

BUSY_MS = 5_000
COMMIT_SECONDS_MAX = 30.0  # a write transaction is shielded from cancellation for this long, never longer

_encode = msgspec.msgpack.Encoder().encode
_decode_signal = msgspec.msgpack.Decoder(Signal).decode
_decode_seqs = msgspec.msgpack.Decoder(list[int]).decode


class TurnRow(Struct):
    id: int
    namespace: str
    agent: str
    session: str
    session_id: str | None
    opened_ms: int
    closed_ms: int
    closed_by: str
    status: str
    outcome: str
    reason: str | None
    revision: int
    speaker: str
    answerer: str
    user: str
    assistant: str
    transcript: str | None
    workspace: str | None


class MemoryRow(Struct):
    id: int
    namespace: str
    turn_id: int | None
    kind: str
    category: str | None
    text: str
    created_ms: int


class Candidate(Struct, array_like=True):
    """A memory as recall gives it, in one JSON row."""

    id: int
    turn_id: int | None
    kind: str
    category: str | None
    text: str
    created_ms: int
    session: str | None
    runs: list[str]


class Found(NamedTuple):
    """What memories are scored by: their ids, unit vectors (n, 256), and terms as numbers, `counts` of each."""

    ids: list[int]
    vectors: Vectors
    numbers: Numbers
    counts: Counts


class Entry(Struct, frozen=True):
    """What a memory is found by."""

    terms: str
    vector: Vector


_TURN_COLUMNS = ", ".join(TurnRow.__struct_fields__)
_MEMORY_COLUMNS = ", ".join(MemoryRow.__struct_fields__)


def explain(e: sqlite3.Error, path: Path) -> StorageError:
    """A SQLite error as a sentence with its remedy."""
    text = str(e)
    if "disk is full" in text or "disk I/O error" in text:
        remedy = "free space on its disk; nothing that was acknowledged is lost"
    elif "locked" in text:
        remedy = "another program holds it: close that program (a backup, a database browser)"
    elif "malformed" in text or "not a database" in text:
        remedy = "it is damaged: move it away and restore a backup, or start with an empty one"
    elif "readonly" in text or "unable to open" in text:
        remedy = "correct the permissions of it and its folder"
    else:
        remedy = "`recalld doctor` looks closer"
    return StorageError(f"the database {path}: {text}; {remedy}")


def migrate(path: Path) -> None:
    """Bring the schema to this version, one transaction a step, and check the steps taken before. Raises StorageError."""
    try:
        db = sqlite3.connect(path, isolation_level=None, timeout=BUSY_MS / 1000)
        try:
            path.chmod(0o600)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, digest TEXT NOT NULL)")
            done = dict(db.execute("SELECT number, digest FROM migrations"))
            if done and max(done) > len(MIGRATIONS):
                raise StorageError(
                    f"the database {path} was made by a newer recalld (schema {max(done)}, this one knows {len(MIGRATIONS)}):"
                    " upgrade recalld, or use another data_dir"
                )
            for number, script in enumerate(MIGRATIONS, 1):
                digest = hashlib.sha256(script.encode()).hexdigest()
                if number in done:
                    if done[number] != digest:
                        raise StorageError(
                            f"the database {path} was made with another migration {number}: restore a backup"
                        )
                    continue
                db.executescript(
                    f"BEGIN IMMEDIATE; {script}; INSERT INTO migrations VALUES ({number}, '{digest}'); COMMIT;"
                )
        finally:
            db.close()
    except sqlite3.Error as e:
        raise explain(e, path) from None


class Store:
    """The asynchronous face: one connection that writes, one that reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: aiosqlite.Connection | None = None
        self._reader: aiosqlite.Connection | None = None
        self.next_memory_id = 1
        self.next_turn_id = 1
        self.model_id = 0

    async def open(self, identity: str) -> None:
        """Migrate, open, and register the embedding model. Raises StorageError."""
        await anyio.to_thread.run_sync(migrate, self.path)
        try:
            self._writer = await aiosqlite.connect(self.path, isolation_level=None)
            await self._writer.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            await self._writer.execute("PRAGMA synchronous = FULL")
            await self._writer.execute("PRAGMA foreign_keys = ON")
            await self._writer.execute("INSERT OR IGNORE INTO models (identity) VALUES (?)", (identity,))
            self._reader = await aiosqlite.connect(f"file:{self.path}?mode=ro", uri=True, isolation_level=None)
            self.model_id = (await self.rows("SELECT id FROM models WHERE identity = ?", identity))[0][0]
            sequence = dict(await self.rows("SELECT name, seq FROM sqlite_sequence"))
        except sqlite3.Error as e:
            await self.close()  # their threads would keep the process alive
            raise explain(e, self.path) from None
        except StorageError:
            await self.close()
            raise
        self.next_memory_id = sequence.get("memories", 0) + 1
        self.next_turn_id = sequence.get("turns", 0) + 1

    async def close(self) -> None:
        for connection in (self._reader, self._writer):
            if connection is not None:
                await connection.close()

    async def rows(self, sql: str, *parameters: Any) -> list[Any]:
        """All rows of a query, as committed. Raises StorageError."""
        assert self._reader is not None
        try:
            return list(await self._reader.execute_fetchall(sql, parameters))
        except sqlite3.Error as e:
            raise explain(e, self.path) from None

    async def commit(self, units: Sequence[Unit]) -> list[StorageError | None]:
        """Write units in one transaction; if it fails, each on its own. Returns each unit's error, None if it is on disk.

        Shielded from cancellation (a transaction left open would lock the database), bounded by COMMIT_SECONDS_MAX.
        """
        try:
            with anyio.fail_after(COMMIT_SECONDS_MAX, shield=True):
                error = await self._transaction([s for unit in units for s in unit])
                if error is None:
                    return [None] * len(units)
                return [error] if len(units) == 1 else [await self._transaction(unit) for unit in units]
        except TimeoutError:
            text = f"the database {self.path} did not commit in {COMMIT_SECONDS_MAX:.0f} s: look at its disk"
            return [StorageError(text)] * len(units)

    async def _transaction(self, statements: Iterable[Statement]) -> StorageError | None:
        db = self._writer
        assert db is not None
        try:
            if db.in_transaction:  # the one before ran into its time limit
                await db.execute("ROLLBACK")
            await db.execute("BEGIN IMMEDIATE")
            try:
                for sql, rows in statements:
                    await db.executemany(sql, rows)
                await db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    await db.execute("ROLLBACK")
                raise
        except sqlite3.Error as e:
            return explain(e, self.path)
        return None

    async def checkpoint(self) -> None:
        """Move the WAL into the database, as far as no reader needs it; recall does not wait for it."""
        assert self._writer is not None
        try:
            await self._writer.execute_fetchall("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as e:
            raise explain(e, self.path) from None

    # -- reading at start

    async def sources(self) -> dict[str, Source]:
        rows = await self.rows("SELECT src, upto, above, given_up FROM sources")
        return {src: Source(upto, frozenset(_decode_seqs(above)), given_up) for src, upto, above, given_up in rows}

    async def journal(self) -> list[Signal]:
        return [_decode_signal(row[0]) for row in await self.rows("SELECT signal FROM journal ORDER BY id")]

    # -- reading in service

    async def turn_by_runs(self, namespace: str, session: str, runs: Sequence[str]) -> TurnRow | None:
        """The stored turn that has one of these runs."""
        marks = ", ".join("?" * len(runs))
        rows = await self.rows(
            f"SELECT {_TURN_COLUMNS} FROM turns WHERE id = (SELECT min(turn_id) FROM turn_runs"
            f" WHERE namespace = ? AND session = ? AND run_id IN ({marks}))",
            namespace,
            session,
            *runs,
        )
        return TurnRow(*rows[0]) if rows else None

    async def turn(self, turn_id: int) -> TurnRow | None:
        rows = await self.rows(f"SELECT {_TURN_COLUMNS} FROM turns WHERE id = ?", turn_id)
        return TurnRow(*rows[0]) if rows else None

    async def unnoted(self, limit: int) -> list[TurnRow]:
        """Stored turns that have no daily note yet, in order."""
        rows = await self.rows(f"SELECT {_TURN_COLUMNS} FROM turns WHERE noted = 0 ORDER BY id LIMIT ?", limit)
        return [TurnRow(*row) for row in rows]

    async def runs_of(self, turn_id: int) -> list[str]:
        """The run ids of a turn; the key of a turn without any (`@…`) is not one."""
        rows = await self.rows("SELECT run_id FROM turn_runs WHERE turn_id = ? AND run_id NOT LIKE '@%'", turn_id)
        return [row[0] for row in rows]

    async def memory(self, namespace: str, memory_id: int) -> MemoryRow | None:
        rows = await self.rows(
            f"SELECT {_MEMORY_COLUMNS} FROM memories WHERE id = ? AND namespace = ?",
            memory_id,
            namespace,
        )
        return MemoryRow(*rows[0]) if rows else None

    async def memories_of_turn(self, turn_id: int) -> list[MemoryRow]:
        rows = await self.rows(f"SELECT {_MEMORY_COLUMNS} FROM memories WHERE turn_id = ? ORDER BY id", turn_id)
        return [MemoryRow(*row) for row in rows]

    async def note_by_text(self, namespace: str, text: str) -> int | None:
        rows = await self.rows(
            "SELECT id FROM memories WHERE kind = 'note' AND namespace = ? AND text = ?", namespace, text
        )
        return rows[0][0] if rows else None

    async def was_forgotten(self, namespace: str, memory_id: int) -> bool:
        return bool(
            await self.rows(
                "SELECT 1 FROM tombstones WHERE memory_id = ? AND namespace = ? AND forgotten = 1", memory_id, namespace
            )
        )


# -- writing: each function gives the statements of one unit


def journal_unit(signals: Sequence[Signal], sources: dict[str, Source], now_ms: int) -> Unit:
    """Signals to be replayed after a crash, and what is settled of their publishers."""
    return [
        (
            "INSERT OR IGNORE INTO journal (src, seq, signal) VALUES (?, ?, ?)",
            [(s.src, s.seq, _encode(s)) for s in signals],
        ),
        *sources_unit(sources, now_ms),
    ]


def sources_unit(sources: dict[str, Source], now_ms: int) -> Unit:
    return [
        (
            "INSERT OR REPLACE INTO sources VALUES (?, ?, ?, ?, ?)",
            [(src, s.upto, _encode(sorted(s.above)), s.given_up, now_ms) for src, s in sources.items()],
        )
    ]


def expire_unit(before_ms: int) -> Unit:
    """Publishers not heard of since, unless the journal still has something of theirs."""
    sql = "DELETE FROM sources WHERE seen_ms < ? AND src NOT IN (SELECT src FROM journal)"
    return [(sql, [(before_ms,)])]


def release_unit(journal: Iterable[tuple[str, int]]) -> Unit:
    """Journal entries whose turn needs them no longer."""
    return [("DELETE FROM journal WHERE src = ? AND seq = ?", list(journal))]


def turn_unit(
    turn: TurnRow,
    runs: Sequence[str],
    memories: Sequence[MemoryRow],
    entries: Sequence[Entry],
    model_id: int,
    replaced: Sequence[int],
) -> Unit:
    """A turn with its memories, instead of any earlier version of both."""
    values = msgspec.structs.astuple(turn)
    marks = ", ".join("?" * len(values))
    updates = ", ".join(f"{c} = excluded.{c}" for c in TurnRow.__struct_fields__ if c != "id")
    return [
        (
            f"INSERT INTO turns ({_TURN_COLUMNS}) VALUES ({marks}) ON CONFLICT (id) DO UPDATE SET {updates}, noted = 0",
            [values],
        ),
        (
            "INSERT OR REPLACE INTO turn_runs VALUES (?, ?, ?, ?)",
            [(turn.namespace, turn.session, run, turn.id) for run in runs],
        ),
        *removal_unit(turn.namespace, replaced, forgotten=False),
        *memories_unit(memories, entries, model_id),
    ]


def memories_unit(memories: Sequence[MemoryRow], entries: Sequence[Entry], model_id: int) -> Unit:
    marks = ", ".join("?" * len(MemoryRow.__struct_fields__))
    return [
        (
            f"INSERT INTO memories ({_MEMORY_COLUMNS}) VALUES ({marks})",
            [msgspec.structs.astuple(m) for m in memories],
        ),
        *entries_unit([m.id for m in memories], entries, model_id),
    ]


def entries_unit(memory_ids: Sequence[int], entries: Sequence[Entry], model_id: int) -> Unit:
    return [
        (
            "INSERT OR REPLACE INTO embeddings VALUES (?, ?, ?, ?, ?)",
            [
                (m, model_id, e.vector.astype("<f2").tobytes(), e.terms, numbers_of(e.terms.split()).tobytes())
                for m, e in zip(memory_ids, entries, strict=True)
            ],
        )
    ]


def removal_unit(namespace: str, memory_ids: Sequence[int], *, forgotten: bool) -> Unit:
    return [
        (
            "INSERT INTO tombstones (namespace, memory_id, forgotten) VALUES (?, ?, ?)",
            [(namespace, m, int(forgotten)) for m in memory_ids],
        ),
        ("DELETE FROM memories WHERE id = ? AND namespace = ?", [(m, namespace) for m in memory_ids]),
    ]


def noted_unit(turn_ids: Sequence[int]) -> Unit:
    return [("UPDATE turns SET noted = 1 WHERE id = ?", [(t,) for t in turn_ids])]


def forget_turn_unit(turn_id: int) -> Unit:
    """The turn stays counted; its words go."""
    return [
        (
            "UPDATE turns SET user = '', assistant = '', transcript = NULL, reason = 'forgotten', noted = 1 WHERE id = ?",
            [(turn_id,)],
        )
    ]


class Reader:
    """The recall thread's own synchronous connection. Not shared between threads."""

    def __init__(self, path: Path, model_id: int) -> None:
        self._path = path
        self._model_id = model_id
        try:
            self._db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as e:
            raise explain(e, path) from None
        self._decode = msgspec.json.Decoder(list[Candidate]).decode
        self._decode_pairs = msgspec.json.Decoder(list[tuple[int, int]]).decode

    def entries(self, ids: Sequence[int]) -> Found:
        """What those of these memories that are derived are scored by, in one row: each row read takes the GIL again.
        Of any namespace: what is given out comes from `candidates`."""
        sql = (
            "SELECT json_group_array(json_array(memory_id, length(numbers) / 4)),"
            " CAST(group_concat(vector, '') AS BLOB), CAST(group_concat(numbers, '') AS BLOB)"
            " FROM embeddings WHERE model_id = ? AND memory_id IN (SELECT value FROM json_each(?))"
        )
        [(found, vectors, numbers)] = self._all(sql, self._model_id, msgspec.json.encode(list(ids)).decode())
        pairs = np.array(self._decode_pairs(found), dtype=np.int64).reshape(-1, 2)
        return Found(
            pairs[:, 0].tolist(),
            np.frombuffer(vectors or b"", dtype="<f2").reshape(-1, DIMENSIONS).astype(np.float32),
            np.frombuffer(numbers or b"", dtype="<u4"),
            pairs[:, 1],
        )

    def candidates(self, namespace: str, ids: Sequence[int]) -> list[Candidate]:
        """The memories with these ids that the namespace has, in one row."""
        sql = (
            "SELECT json_group_array(json_array(m.id, m.turn_id, m.kind, m.category, m.text, m.created_ms, t.session,"
            " json((SELECT json_group_array(r.run_id) FROM turn_runs r"
            " WHERE r.turn_id = m.turn_id AND r.run_id NOT LIKE '@%'))))"
            " FROM memories m LEFT JOIN turns t ON t.id = m.turn_id"
            " WHERE m.namespace = ? AND m.id IN (SELECT value FROM json_each(?))"
        )
        [(found,)] = self._all(sql, namespace, msgspec.json.encode(list(ids)).decode())
        return self._decode(found)

    def vectors(self, namespace: str, above_id: int) -> tuple[list[int], Vectors]:
        """(ids, unit vectors) of a namespace's memories with an id above `above_id`, in order."""
        ids: list[int] = []
        blobs: list[bytes] = []
        query = (
            "SELECT m.id, e.vector FROM memories m JOIN embeddings e ON e.memory_id = m.id AND e.model_id = ?"
            " WHERE m.namespace = ? AND m.id > ? ORDER BY m.id"
        )
        try:
            for memory_id, blob in self._db.execute(query, (self._model_id, namespace, above_id)):
                ids.append(memory_id)
                blobs.append(blob)
        except sqlite3.Error as e:
            raise explain(e, self._path) from None
        return ids, np.frombuffer(b"".join(blobs), dtype="<f2").reshape(len(ids), DIMENSIONS).astype(np.float32)

    def terms(self, namespace: str, above_id: int, limit: int) -> list[tuple[int, str]]:
        """(memory id, terms) above a memory id, in order."""
        sql = (
            "SELECT m.id, e.terms FROM memories m JOIN embeddings e ON e.memory_id = m.id AND e.model_id = ?"
            " WHERE m.namespace = ? AND m.id > ? ORDER BY m.id LIMIT ?"
        )
        return self._all(sql, self._model_id, namespace, above_id, limit)

    def tombstones(self, namespace: str, above_id: int) -> list[tuple[int, int]]:
        """(tombstone id, memory id) of a namespace above a tombstone id."""
        return self._all(
            "SELECT id, memory_id FROM tombstones WHERE namespace = ? AND id > ? ORDER BY id", namespace, above_id
        )

    def unembedded(self, limit: int) -> list[tuple[int, str, str]]:
        """(id, namespace, text) of memories that have no embedding of this model."""
        sql = (
            "SELECT m.id, m.namespace, m.text FROM memories m LEFT JOIN embeddings e ON e.memory_id = m.id AND e.model_id = ?"
            " WHERE e.memory_id IS NULL ORDER BY m.id LIMIT ?"
        )
        return self._all(sql, self._model_id, limit)

    def namespaces(self) -> dict[str, int]:
        """Memories by namespace."""
        return dict(self._all("SELECT namespace, count(*) FROM memories GROUP BY namespace"))

    def _all(self, sql: str, *parameters: Any) -> list[Any]:
        try:
            return self._db.execute(sql, parameters).fetchall()
        except sqlite3.Error as e:
            raise explain(e, self._path) from None

    def close(self) -> None:
        self._db.close()
