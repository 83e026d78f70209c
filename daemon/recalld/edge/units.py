"""What is written to the record: its rows, and the statements of each unit of writing. A unit is written whole or not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType

from recalld.core.policy import LinkType
from recalld.core.sequence import Source
from recalld.core.signals import Signal
from recalld.edge.embed import Vector, Vectors
from recalld.wire.messages import Decay

EVERYWHERE = ("", "")  # the place of the global toggle: no agent has an empty name

Statement = tuple[str, Sequence[Sequence[Any]]]
Unit = list[Statement]

LINKS_MAX = 16  # from one memory: what is linked with everything says nothing

_encode = msgspec.msgpack.Encoder().encode


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
    importance: float = 0.5
    confidence: float = 1.0
    decay: Decay = "durable"
    pinned: bool = False
    expires_ms: int | None = None
    superseded_by: int | None = None
    entity: str | None = None
    source: str | None = None


class Attributes(Struct, frozen=True):
    """What may be changed of a memory; what is left out stays as it is."""

    importance: float | UnsetType = UNSET
    confidence: float | UnsetType = UNSET
    decay: Decay | UnsetType = UNSET
    pinned: bool | UnsetType = UNSET
    expires_ms: int | UnsetType | None = UNSET
    entity: str | UnsetType | None = UNSET

    def given(self) -> dict[str, Any]:
        return {k: v for k, v in msgspec.structs.asdict(self).items() if v is not UNSET}


class Entry(Struct, frozen=True):
    """What a memory is found and scored by. `vector` None: it is made later."""

    terms: str
    vector: Vector | None
    features: bytes


class Underived(NamedTuple):
    """A memory's text, and who speaks in it."""

    text: str
    speaker: str | None = None
    answerer: str | None = None


TURN_COLUMNS = ", ".join(TurnRow.__struct_fields__)
MEMORY_COLUMNS = ", ".join(MemoryRow.__struct_fields__)


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
            f"INSERT INTO turns ({TURN_COLUMNS}) VALUES ({marks}) ON CONFLICT (id) DO UPDATE SET {updates}, noted = 0",
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
            f"INSERT INTO memories ({MEMORY_COLUMNS}) VALUES ({marks})",
            [msgspec.structs.astuple(m) for m in memories],
        ),
        *entries_unit([m.id for m in memories], entries, model_id),
    ]


def entries_unit(memory_ids: Sequence[int], entries: Sequence[Entry], model_id: int) -> Unit:
    return [
        (
            "INSERT OR REPLACE INTO embeddings VALUES (?, ?, ?, ?, ?)",
            [
                (m, model_id, None if e.vector is None else _packed(e.vector), e.terms, e.features)
                for m, e in zip(memory_ids, entries, strict=True)
            ],
        )
    ]


def vectors_unit(memory_ids: Sequence[int], vectors: Vectors, model_id: int) -> Unit:
    """Vectors of memories that were stored without; of those that are still there."""
    return [
        (
            "UPDATE embeddings SET vector = ? WHERE memory_id = ? AND model_id = ?",
            [(_packed(vector), m, model_id) for m, vector in zip(memory_ids, vectors, strict=True)],
        ),
        ("UPDATE models SET dimensions = ? WHERE id = ? AND dimensions = 0", [(vectors.shape[1], model_id)]),
    ]


def _packed(vector: Vector) -> bytes:
    return vector.astype("<f2").tobytes()


def removal_unit(namespace: str, memory_ids: Sequence[int], *, forgotten: bool) -> Unit:
    return [
        (
            "INSERT INTO tombstones (namespace, memory_id, forgotten) VALUES (?, ?, ?)",
            [(namespace, m, int(forgotten)) for m in memory_ids],
        ),
        ("DELETE FROM memories WHERE id = ? AND namespace = ?", [(m, namespace) for m in memory_ids]),
        (
            "DELETE FROM links WHERE namespace = ? AND (from_id = ? OR to_id = ?)",
            [(namespace, m, m) for m in memory_ids],
        ),
    ]


def attributes_unit(namespace: str, memory_id: int, attributes: Attributes) -> Unit:
    given = attributes.given()
    sets = ", ".join(f"{column} = ?" for column in given)
    sql = f"UPDATE memories SET {sets} WHERE id = ? AND namespace = ?"
    return [(sql, [(*given.values(), memory_id, namespace)])] if given else []


def supersede_unit(namespace: str, memory_ids: Sequence[int], successor: int) -> Unit:
    """The successor holds instead of these, and stands again if it was superseded itself: so there are no circles."""
    old = [m for m in memory_ids if m != successor]
    return [
        ("UPDATE memories SET superseded_by = NULL WHERE id = ? AND namespace = ?", [(successor, namespace)]),
        (
            "UPDATE memories SET superseded_by = ?1 WHERE id = ?2 AND namespace = ?3"
            " AND EXISTS (SELECT 1 FROM memories WHERE id = ?1 AND namespace = ?3)",
            [(successor, m, namespace) for m in old],
        ),
        *link_unit(namespace, [(successor, m, "supersedes") for m in old]),
    ]


def link_unit(namespace: str, links: Sequence[tuple[int, int, LinkType]]) -> Unit:
    """(from, to, type). Left out: one to a memory that the namespace does not have, to itself, or beyond LINKS_MAX."""
    return [
        (
            "INSERT INTO links SELECT ?1, a.id, b.id, ?4 FROM memories a, memories b"
            " WHERE a.id = ?2 AND b.id = ?3 AND a.id <> b.id AND a.namespace = ?1 AND b.namespace = ?1"
            f" AND (SELECT count(*) FROM links WHERE namespace = ?1 AND from_id = ?2) < {LINKS_MAX}"
            " ON CONFLICT DO NOTHING",
            [(namespace, *link) for link in links],
        )
    ]


def noted_unit(turn_ids: Sequence[int]) -> Unit:
    return [("UPDATE turns SET noted = 1 WHERE id = ?", [(t,) for t in turn_ids])]


def forget_turn_unit(turn_id: int) -> Unit:
    """The turn stays counted; its words go, also those in the log of recalls: its prompt, and what quotes it."""
    return [
        (
            "DELETE FROM recalls WHERE id IN (SELECT r.id FROM turns t JOIN recalls r"
            " ON r.namespace = t.namespace AND r.agent = t.agent AND r.session = t.session"
            " WHERE t.id = ? AND (r.run_id IN (SELECT run_id FROM turn_runs WHERE turn_id = t.id)"
            " OR r.run_id = '' AND r.at_ms BETWEEN t.opened_ms AND t.closed_ms"
            " OR r.quotes AND r.at_ms >= t.opened_ms))",
            [(turn_id,)],
        ),
        (
            "UPDATE turns SET user = '', assistant = '', transcript = NULL, reason = 'forgotten', noted = 1 WHERE id = ?",
            [(turn_id,)],
        ),
    ]


def toggle_unit(place: tuple[str, str], *, on: bool) -> Unit:
    """Memory on or off for an (agent, session), or EVERYWHERE."""
    sql = "DELETE FROM toggles WHERE agent = ? AND session = ?" if on else "INSERT OR IGNORE INTO toggles VALUES (?, ?)"
    return [(sql, [place])]
