"""Reading the record from a thread: recall's own synchronous connections."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from recalld.core.rank import Counts, Numbers
from recalld.core.scored import Candidate
from recalld.edge.embed import DIMENSIONS, Vectors
from recalld.edge.store import explain


class Found(NamedTuple):
    """What memories are scored by: their ids, unit vectors (n, 256), and terms as numbers, `counts` of each."""

    ids: list[int]
    vectors: Vectors
    numbers: Numbers
    counts: Counts


class Reader:
    """A thread's own synchronous connection, to be shared with no other."""

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
