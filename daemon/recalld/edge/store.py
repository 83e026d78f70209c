"""The record: SQLite in WAL mode, one writer with group commit, readers beside it. All else is derived from it."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiosqlite
import anyio
import msgspec

from recalld.core.sequence import Source
from recalld.core.signals import Signal
from recalld.edge.embed import DIMENSIONS
from recalld.edge.migrations import MIGRATIONS
from recalld.edge.recalls import RecallRecord, record_of
from recalld.edge.units import MEMORY_COLUMNS, TURN_COLUMNS, MemoryRow, Statement, TurnRow, Unit
from recalld.errors import StorageError

BUSY_MS = 5_000
ADOPT_IDS = 50_000  # memories whose terms are taken over in one transaction

_decode_signal = msgspec.msgpack.Decoder(Signal).decode
_decode_seqs = msgspec.msgpack.Decoder(list[int]).decode


def _locked(e: sqlite3.Error | None) -> bool:
    return e is not None and "locked" in str(e)


def explain(e: sqlite3.Error, path: Path) -> StorageError:
    """A SQLite error as a sentence with its remedy."""
    text = str(e)
    if "disk is full" in text or "disk I/O error" in text:
        remedy = "free space on its disk; nothing that was acknowledged is lost"
    elif _locked(e):
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


class WritingConnection(aiosqlite.Connection):
    """Takes a transaction as a whole: one hop to its thread, where one for each statement took 15 % more of a core."""

    async def transact(self, statements: Sequence[Statement]) -> None:
        """All or nothing. Raises sqlite3.Error."""
        await self._execute(self._transact, statements)  # type: ignore[no-untyped-call]

    def _transact(self, statements: Sequence[Statement]) -> None:
        db = self._conn
        db.execute("BEGIN IMMEDIATE")
        try:
            for sql, rows in statements:
                db.executemany(sql, rows)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


class Store:
    """The asynchronous face: one connection that writes, one that reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: WritingConnection | None = None
        self._reader: aiosqlite.Connection | None = None
        self.next_memory_id = 1
        self.next_turn_id = 1
        self.model_id = 0
        self.dimensions = 0

    async def open(self, identity: str, dimensions: int = DIMENSIONS) -> None:
        """Migrate, open, and register the embedding model; 0 dimensions: not known. Raises StorageError."""
        await anyio.to_thread.run_sync(migrate, self.path)
        try:
            self._writer = WritingConnection(lambda: sqlite3.connect(self.path, isolation_level=None), 1)
            await self._writer
            await self._writer.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            await self._writer.execute("PRAGMA synchronous = FULL")
            await self._writer.execute("PRAGMA foreign_keys = ON")
            await self._writer.execute(
                "INSERT OR IGNORE INTO models (identity, dimensions) VALUES (?, ?)", (identity, dimensions)
            )
            self._reader = await aiosqlite.connect(f"file:{self.path}?mode=ro", uri=True, isolation_level=None)
            sql = "SELECT id, dimensions, last_used FROM models WHERE identity = ?"
            self.model_id, self.dimensions, last_used = (await self.rows(sql, identity))[0]
            sequence = dict(await self.rows("SELECT name, seq FROM sqlite_sequence"))
        except sqlite3.Error as e:
            await self.close()  # their threads would keep the process alive
            raise explain(e, self.path) from None
        except StorageError:
            await self.close()
            raise
        self.next_memory_id = sequence.get("memories", 0) + 1
        self.next_turn_id = sequence.get("turns", 0) + 1
        if not last_used:
            await self._adopt(identity.rpartition(" ")[2])

    async def _adopt(self, analyser: str) -> None:
        """Take over what the same analyser made beside another model: memories are found and scored by their words while
        the vectors of this one are made."""
        sql = (
            "INSERT INTO embeddings (memory_id, model_id, vector, terms, features)"
            " SELECT e.memory_id, ?1, NULL, e.terms, e.features FROM embeddings e"
            " WHERE e.memory_id > ?3 AND e.memory_id <= ?4 AND e.model_id = ?2"
            " AND NOT EXISTS (SELECT 1 FROM embeddings o WHERE o.memory_id = e.memory_id AND o.model_id = ?1)"
        )
        others = await self.rows("SELECT id, identity FROM models WHERE id <> ?", self.model_id)
        same = [other for other, identity in others if identity.endswith(f" {analyser}")]
        starts = range(0, self.next_memory_id, ADOPT_IDS)
        units: list[Unit] = [[(sql, [(self.model_id, o, n, n + ADOPT_IDS)])] for o in same for n in starts]
        units.append([("UPDATE models SET last_used = (id = ?)", [(self.model_id,)])])
        for unit in units:
            if (failure := await self._transaction(unit)) is not None:
                await self.close()
                raise explain(failure, self.path)

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

        Where the database is locked by others for BUSY_MS, that is every unit's error: alone it would wait as long again.
        Shielded from cancellation: what may still reach the disk must not be written again.
        """
        with anyio.CancelScope(shield=True):
            failure = await self._transaction([s for unit in units for s in unit])
            failures = [failure] * len(units)
            if failure is not None and len(units) > 1:
                for number, unit in enumerate(units):
                    if not _locked(failure):
                        failure = await self._transaction(unit)
                    failures[number] = failure
        return [None if failure is None else explain(failure, self.path) for failure in failures]

    async def _transaction(self, statements: Sequence[Statement]) -> sqlite3.Error | None:
        assert self._writer is not None
        try:
            await self._writer.transact(statements)
        except sqlite3.Error as e:
            return e
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

    async def toggled_off(self) -> list[tuple[str, str]]:
        """The (agent, session) where memory is off."""
        return [(agent, session) for agent, session in await self.rows("SELECT agent, session FROM toggles")]

    # -- reading in service

    async def turn_by_runs(self, namespace: str, session: str, runs: Sequence[str]) -> TurnRow | None:
        """The stored turn that has one of these runs."""
        marks = ", ".join("?" * len(runs))
        rows = await self.rows(
            f"SELECT {TURN_COLUMNS} FROM turns WHERE id = (SELECT min(turn_id) FROM turn_runs"
            f" WHERE namespace = ? AND session = ? AND run_id IN ({marks}))",
            namespace,
            session,
            *runs,
        )
        return TurnRow(*rows[0]) if rows else None

    async def turn(self, turn_id: int) -> TurnRow | None:
        rows = await self.rows(f"SELECT {TURN_COLUMNS} FROM turns WHERE id = ?", turn_id)
        return TurnRow(*rows[0]) if rows else None

    async def last_tombstone(self, namespace: str) -> int:
        rows = await self.rows("SELECT coalesce(max(id), 0) FROM tombstones WHERE namespace = ?", namespace)
        return int(rows[0][0])

    async def unnoted(self, limit: int) -> list[TurnRow]:
        """Stored turns that have no daily note yet, in order."""
        rows = await self.rows(f"SELECT {TURN_COLUMNS} FROM turns WHERE noted = 0 ORDER BY id LIMIT ?", limit)
        return [TurnRow(*row) for row in rows]

    async def runs_of(self, turn_id: int) -> list[str]:
        """The run ids of a turn; the key of a turn without any (`@…`) is not one."""
        rows = await self.rows("SELECT run_id FROM turn_runs WHERE turn_id = ? AND run_id NOT LIKE '@%'", turn_id)
        return [row[0] for row in rows]

    async def memory(self, namespace: str, memory_id: int) -> MemoryRow | None:
        rows = await self.rows(
            f"SELECT {MEMORY_COLUMNS} FROM memories WHERE id = ? AND namespace = ?",
            memory_id,
            namespace,
        )
        return MemoryRow(*rows[0]) if rows else None

    async def memories_of_turn(self, turn_id: int) -> list[MemoryRow]:
        rows = await self.rows(f"SELECT {MEMORY_COLUMNS} FROM memories WHERE turn_id = ? ORDER BY id", turn_id)
        return [MemoryRow(*row) for row in rows]

    async def links_from(self, namespace: str, memory_id: int) -> list[tuple[int, int, str]]:
        """(from, to, type) of a memory's own links."""
        return await self.rows(
            "SELECT from_id, to_id, type FROM links WHERE namespace = ? AND from_id = ?", namespace, memory_id
        )

    async def memories_by_id(self, namespace: str, ids: Sequence[int]) -> dict[int, MemoryRow]:
        """Those of these memories that the namespace has."""
        rows = await self.rows(
            f"SELECT {MEMORY_COLUMNS} FROM memories WHERE namespace = ? AND id IN (SELECT value FROM json_each(?))",
            namespace,
            msgspec.json.encode(list(ids)).decode(),
        )
        return {row[0]: MemoryRow(*row) for row in rows}

    async def uses(self, memory_id: int) -> tuple[int, int | None]:
        """(how often a memory was injected, Unix ms of the last time)."""
        rows = await self.rows("SELECT uses, last_used_ms FROM uses WHERE memory_id = ?", memory_id)
        return (rows[0][0], rows[0][1]) if rows else (0, None)

    async def recall(self, namespace: str, agent: str, recall_id: int) -> RecallRecord | None:
        """A logged recall of this agent."""
        sql = "SELECT record FROM recalls WHERE namespace = ? AND agent = ? AND id = ?"
        rows = await self.rows(sql, namespace, agent, recall_id)
        return record_of(rows[0][0]) if rows else None

    async def last_recalls(
        self, namespace: str, agent: str, session: str | None, run_id: str | None, limit: int
    ) -> list[tuple[int, RecallRecord]]:
        """(id, record) of the latest of this agent, the latest first; of a session or a run, if given."""
        rows = await self.rows(
            "SELECT id, record FROM recalls WHERE namespace = ? AND agent = ? AND session = coalesce(?, session)"
            " AND run_id = coalesce(?, run_id) ORDER BY id DESC LIMIT ?",
            namespace,
            agent,
            session,
            run_id,
            limit,
        )
        return [(row[0], record_of(row[1])) for row in rows]

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
