"""A memory that was found for a query, and what it is worth."""

from __future__ import annotations

from msgspec import Struct, field

from recalld.wire.messages import Decay


class Candidate(Struct, array_like=True):
    """A memory as recall reads it, in one JSON row. `summary`: what may be shown in place of a long text. The attributes
    before it order the memory: `core/policy.py`."""

    id: int
    turn_id: int | None
    kind: str
    category: str | None
    text: str
    created_ms: int
    session: str | None
    runs: list[str]
    importance: float = 0.5
    confidence: float = 1.0
    decay: Decay = "durable"
    pinned: bool = False
    expires_ms: int | None = None
    superseded_by: int | None = None
    source: str | None = None
    summary: str | None = None


class Scored(Struct):
    """`score` is absolute: it depends on the query and the memory alone. `parts`: what it and its place in the order are
    made of, by name. `via`: what brought it here other than its own score; the floor does not hold for it."""

    memory: Candidate
    score: float
    parts: dict[str, float] = field(default_factory=dict)
    via: str = ""
