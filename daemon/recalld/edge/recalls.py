"""The log of recalls and the counts of use: their rows, what is written, and what keeps them small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from recalld.core.scored import Below, Judged
from recalld.edge.units import Unit

_encode = msgspec.msgpack.Encoder().encode  # of a hundred numbers each: as text it took ten times as long


class RecallRecord(Struct, omit_defaults=True):
    """An answered prompt: what was asked (`settings`: the configuration of recall), found and decided.

    `run_id` is empty where the host named none. `stages`: ms from reading the question to the end of each. `candidates`:
    those that were read; the rest is `below` the floor.
    """

    namespace: str
    agent: str
    session: str
    run_id: str
    at_ms: int
    query: str
    status: str
    source: str
    elapsed_ms: float
    settings: dict[str, Any]
    stages: dict[str, float]
    candidates: list[Judged]
    below: Below
    context: str = ""
    reason: str | None = None
    tokens: int = 0


_decode = msgspec.msgpack.Decoder(RecallRecord).decode


def recalls_unit(records: Sequence[RecallRecord]) -> Unit:
    return [
        (
            "INSERT INTO recalls (namespace, agent, session, run_id, at_ms, quotes, record) VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(r.namespace, r.agent, r.session, r.run_id, r.at_ms, bool(r.context), _encode(r)) for r in records],
        )
    ]


def record_of(encoded: bytes) -> RecallRecord:
    return _decode(encoded)


def recalls_bound_unit(keep: int, before_ms: int) -> Unit:
    """Leave the `keep` newest of those that are not older."""
    return [
        ("DELETE FROM recalls WHERE id <= (SELECT max(id) FROM recalls) - ?", [(keep,)]),
        ("DELETE FROM recalls WHERE at_ms < ?", [(before_ms,)]),
    ]


def uses_unit(uses: Mapping[int, tuple[int, int]]) -> Unit:
    """`uses`: by memory id, how often it was injected and when last (Unix ms). One that was removed meanwhile has none."""
    return [
        (
            "INSERT INTO uses SELECT id, ?, ? FROM memories WHERE id = ? ON CONFLICT (memory_id) DO UPDATE"
            " SET uses = uses + excluded.uses, last_used_ms = max(last_used_ms, excluded.last_used_ms)",
            [(count, last_ms, memory_id) for memory_id, (count, last_ms) in uses.items()],
        )
    ]
