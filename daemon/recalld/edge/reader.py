"""Reading the record from a thread: recall's own synchronous connections."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from recalld.core.scored import Candidate
from recalld.edge.features import Entry, session_number
from recalld.edge.store import explain
from recalld.edge.units import Underived

SUCCESSIONS_MAX = 16  # a fact that changed oftener is found by its newest form
LINKS_READ_MAX = 64  # a hub is linked from everywhere; an answer takes three


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

    def candidates(self, namespace: str, ids: Sequence[int]) -> list[Candidate]:
        """The memories with these ids that the namespace has, in one row."""
        sql = (
            "SELECT json_group_array(json_array(m.id, m.turn_id, m.kind, m.category, m.text, m.created_ms, t.session,"
            " json((SELECT json_group_array(r.run_id) FROM turn_runs r"
            " WHERE r.turn_id = m.turn_id AND r.run_id NOT LIKE '@%')),"
            " m.importance, m.confidence, m.decay, json(iif(m.pinned, 'true', 'false')), m.expires_ms, m.superseded_by,"
            " m.source))"
            " FROM memories m LEFT JOIN turns t ON t.id = m.turn_id"
            " WHERE m.namespace = ? AND m.id IN (SELECT value FROM json_each(?))"
        )
        [(found,)] = self._all(sql, namespace, msgspec.json.encode(list(ids)).decode())
        return self._decode(found)

    def newest(self, namespace: str, limit: int) -> list[Candidate]:
        """The namespace's newest notes and facts, newest first. No more than `limit` rows are stepped over."""
        sql = "SELECT id FROM memories WHERE namespace = ? AND kind <> 'turn' ORDER BY id DESC LIMIT ?"
        found = self.candidates(namespace, [i for (i,) in self._all(sql, namespace, limit)])
        return sorted(found, key=lambda memory: -memory.id)

    def entries(self, namespace: str, above_id: int) -> Iterator[Entry]:
        """What a namespace's memories with an id above `above_id` are scored by, in order; some are yet to get a vector."""
        sql = (
            "SELECT m.id, t.session, m.kind, m.created_ms, e.features, e.vector FROM memories m"
            " JOIN embeddings e ON e.memory_id = m.id AND e.model_id = ? LEFT JOIN turns t ON t.id = m.turn_id"
            " WHERE m.namespace = ? AND m.id > ? ORDER BY m.id"
        )
        try:
            for memory_id, session, kind, created_ms, features, vector in self._db.execute(
                sql, (self._model_id, namespace, above_id)
            ):
                yield Entry(
                    memory_id,
                    session_number(session),
                    kind == "turn",
                    created_ms,
                    features,
                    None if vector is None else np.frombuffer(vector, dtype="<f2"),
                )
        except sqlite3.Error as e:
            raise explain(e, self._path) from None

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

    def underived(self, limit: int) -> list[tuple[int, Underived]]:
        """Memories (by their ids) that have no row of this model and analyser."""
        sql = (
            "SELECT m.id, m.text, t.speaker, t.answerer FROM memories m LEFT JOIN turns t ON t.id = m.turn_id"
            " LEFT JOIN embeddings e ON e.memory_id = m.id AND e.model_id = ?"
            " WHERE e.memory_id IS NULL ORDER BY m.id LIMIT ?"
        )
        return [(row[0], Underived(*row[1:])) for row in self._all(sql, self._model_id, limit)]

    def entities(self, namespace: str, limit: int) -> list[str]:
        """Those that memories are about that stand, newest first."""
        sql = (
            "SELECT entity FROM memories WHERE namespace = ? AND entity IS NOT NULL AND superseded_by IS NULL"
            " GROUP BY entity ORDER BY max(created_ms) DESC LIMIT ?"
        )
        return [row[0] for row in self._all(sql, namespace, limit)]

    def has_links(self, namespace: str) -> bool:
        """Whether there are links that recall follows."""
        return bool(self._all("SELECT 1 FROM links WHERE namespace = ? AND type <> 'supersedes' LIMIT 1", namespace))

    def newest_about(
        self, namespace: str, column: Literal["entity", "category"], value: str, now_ms: int, limit: int
    ) -> list[int]:
        """Ids of the newest memories of an entity or a category that stand."""
        sql = (
            f"SELECT id FROM memories WHERE namespace = ? AND {column} = ? AND superseded_by IS NULL"
            " AND (expires_ms IS NULL OR expires_ms > ? OR pinned) ORDER BY created_ms DESC LIMIT ?"
        )
        return [row[0] for row in self._all(sql, namespace, value, now_ms, limit)]

    def standing_terms(self, namespace: str, ids: Sequence[int], now_ms: int) -> dict[int, str]:
        """The terms of those of these memories that stand."""
        sql = (
            "SELECT m.id, e.terms FROM memories m JOIN embeddings e ON e.memory_id = m.id AND e.model_id = ?"
            " WHERE m.namespace = ? AND m.id IN (SELECT value FROM json_each(?)) AND m.superseded_by IS NULL"
            " AND (m.expires_ms IS NULL OR m.expires_ms > ? OR m.pinned)"
        )
        return dict(self._all(sql, self._model_id, namespace, msgspec.json.encode(list(ids)).decode(), now_ms))

    def successors(self, namespace: str, ids: Sequence[int]) -> dict[int, int]:
        """What stands instead of each of these memories that was superseded, by its id, through SUCCESSIONS_MAX at most."""
        sql = (
            "WITH RECURSIVE chain (old, id, step) AS ("
            " SELECT id, superseded_by, 1 FROM memories"
            " WHERE namespace = ?1 AND id IN (SELECT value FROM json_each(?2)) AND superseded_by IS NOT NULL"
            " UNION ALL SELECT c.old, m.superseded_by, c.step + 1 FROM chain c JOIN memories m ON m.id = c.id"
            f" WHERE m.namespace = ?1 AND m.superseded_by IS NOT NULL AND c.step < {SUCCESSIONS_MAX})"
            " SELECT c.old, c.id FROM chain c JOIN memories m ON m.id = c.id"
            " WHERE m.namespace = ?1 AND m.superseded_by IS NULL"
        )
        return dict(self._all(sql, namespace, msgspec.json.encode(list(ids)).decode()))

    def links(self, namespace: str, ids: Sequence[int]) -> list[tuple[int, int, str]]:
        """(from, to, type) of links that recall follows from or to these memories, LINKS_READ_MAX at most."""
        sql = (
            "SELECT from_id, to_id, type FROM links WHERE namespace = ?1 AND type <> 'supersedes'"
            " AND from_id IN (SELECT value FROM json_each(?2))"
            " UNION SELECT from_id, to_id, type FROM links WHERE namespace = ?1 AND type <> 'supersedes'"
            f" AND to_id IN (SELECT value FROM json_each(?2)) LIMIT {LINKS_READ_MAX}"
        )
        return self._all(sql, namespace, msgspec.json.encode(list(ids)).decode())

    def without_vector(self, limit: int) -> list[tuple[int, str, str]]:
        """(id, namespace, text) of memories whose vector is yet to be made, in order."""
        sql = (
            "SELECT m.id, m.namespace, m.text FROM embeddings e JOIN memories m ON m.id = e.memory_id"
            " WHERE e.model_id = ? AND e.vector IS NULL ORDER BY e.memory_id LIMIT ?"
        )
        return self._all(sql, self._model_id, limit)

    def first_without_vector(self, namespace: str) -> int | None:
        """The lowest id of a namespace's memories whose vector is yet to be made: an index is complete below it."""
        sql = (
            "SELECT e.memory_id FROM embeddings e JOIN memories m ON m.id = e.memory_id"
            " WHERE e.model_id = ? AND e.vector IS NULL AND m.namespace = ? ORDER BY e.memory_id LIMIT 1"
        )
        return next((row[0] for row in self._all(sql, self._model_id, namespace)), None)

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
