"""A look at the record and the indexes that changes nothing, for `recalld doctor`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from recalld.core.signals import Signal
from recalld.edge.lexical import STATE_VERSION, LexicalIndex, LexicalState, verify
from recalld.edge.store import explain
from recalld.errors import StorageError

BUSY_SECONDS = 5.0


class Record:
    """The database, read only. Every method raises StorageError."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self.path = path
        self._db = db

    def damage(self) -> str | None:
        """What SQLite finds wrong, None if nothing. Reads the whole file."""
        found = str(self._one("PRAGMA quick_check(1)"))
        return None if found == "ok" else " ".join(found.split())

    def is_empty(self) -> bool:
        return not self._one("SELECT count(*) FROM sqlite_master")

    def migrations(self) -> dict[int, str]:
        """Digests of the steps that were taken, by number."""
        return dict(self._all("SELECT number, digest FROM migrations ORDER BY number"))

    def journal(self) -> tuple[int, int]:
        """(events whose turn is not stored yet, Unix ms of the oldest or 0)."""
        count = int(self._one("SELECT count(*) FROM journal"))
        if not count:
            return 0, 0
        oldest = self._one("SELECT signal FROM journal ORDER BY id LIMIT 1")
        return count, msgspec.msgpack.decode(oldest, type=Signal).at_ms

    def namespaces(self) -> dict[str, int]:
        """Memories by namespace."""
        return dict(self._all("SELECT namespace, count(*) FROM memories GROUP BY namespace ORDER BY namespace"))

    def underived(self, identity: str) -> int:
        """Memories without a vector of this model, or terms of this analyser."""
        sql = (
            "SELECT count(*) FROM memories m WHERE NOT EXISTS (SELECT 1 FROM embeddings e JOIN models d ON d.id = e.model_id"
            " WHERE e.memory_id = m.id AND e.vector IS NOT NULL AND d.identity = ?)"
        )
        return int(self._one(sql, identity))

    def documents(self, namespace: str, state: LexicalState) -> int:
        """How many memories a word index holds that follows the record as far as its state says."""
        held = "SELECT count(*) FROM memories WHERE namespace = ? AND id <= ?"
        gone = "SELECT count(*) FROM tombstones WHERE namespace = ? AND id > ? AND memory_id <= ?"
        return int(self._one(held, namespace, state.memory_id)) + int(
            self._one(gone, namespace, state.tombstone_id, state.memory_id)
        )

    def _one(self, sql: str, *parameters: Any) -> Any:
        return self._all(sql, *parameters)[0][0]

    def _all(self, sql: str, *parameters: Any) -> list[Any]:
        try:
            return self._db.execute(sql, parameters).fetchall()
        except sqlite3.Error as e:
            raise explain(e, self.path) from None


@contextmanager
def opened_record(path: Path) -> Iterator[Record]:
    """Raises StorageError."""
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
    except sqlite3.Error as e:
        raise explain(e, path) from None
    try:
        yield Record(path, db)
    except msgspec.MsgspecError as e:
        raise StorageError(f"the database {path} holds what this recalld cannot read: {e}") from None
    finally:
        db.close()


def word_index(folder: Path) -> tuple[LexicalState, int]:
    """(state, documents) of a word index that no daemon has open. Raises ValueError or OSError where it is damaged."""
    try:
        state = msgspec.json.decode((folder / "state.json").read_bytes(), type=LexicalState)
        msgspec.json.decode((folder / "meta.json").read_bytes())
        verify(folder)
    except msgspec.MsgspecError as e:
        raise ValueError(str(e)) from None
    if state.version != STATE_VERSION:
        raise ValueError(f"it has state version {state.version}, this recalld has {STATE_VERSION}")
    index = LexicalIndex(folder)  # would clear a damaged folder; what it checks for is checked above
    try:
        if index.rebuilt:
            raise ValueError(f"{index.rebuilt}; it was cleared just now")
        return state, index.docs
    finally:
        index.close()
