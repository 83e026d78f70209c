"""A memory that was found for a query, and what it is worth."""

from __future__ import annotations

from msgspec import Struct, field


class Candidate(Struct, array_like=True):
    """A memory as recall reads it, in one JSON row. `summary`: what may be shown in place of a long text."""

    id: int
    turn_id: int | None
    kind: str
    category: str | None
    text: str
    created_ms: int
    session: str | None
    runs: list[str]
    summary: str | None = None


class Scored(Struct):
    """`score` is absolute: it depends on the query and the memory alone. `parts`: what it is made of, by name."""

    memory: Candidate
    score: float
    parts: dict[str, float] = field(default_factory=dict)
