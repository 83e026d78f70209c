"""What is written to the record: its rows, and the statements of each unit of writing. A unit is written whole or not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from recalld.core.sequence import Source
from recalld.core.signals import Signal
from recalld.edge.embed import Vector

EVERYWHERE = ("", "")  # the place of the global toggle: no agent has an empty name

Statement = tuple[str, Sequence[Sequence[Any]]]
Unit = list[Statement]

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


class Entry(Struct, frozen=True):
    """What a memory is found and scored by."""

    terms: str
    vector: Vector
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
                (m, model_id, e.vector.astype("<f2").tobytes(), e.terms, e.features)
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


def toggle_unit(place: tuple[str, str], *, on: bool) -> Unit:
    """Memory on or off for an (agent, session), or EVERYWHERE."""
    sql = "DELETE FROM toggles WHERE agent = ? AND session = ?" if on else "INSERT OR IGNORE INTO toggles VALUES (?, ?)"
    return [(sql, [place])]
