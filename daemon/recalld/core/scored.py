"""A memory that was found for a query, and what it is worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from msgspec import Struct, field

from recalld.wire.messages import Decay


class Verdict(StrEnum):
    """What became of a candidate. Who decides sets it; the protocol lists them, and allows for more."""

    INJECTED = "injected"
    BELOW_FLOOR = "below_floor"
    ITEMS_MAX = "items_max"
    CATEGORY = "category"
    SAME_TURN = "same_turn"
    NEAR_DUPLICATE = "near_duplicate"
    GIVEN_RECENTLY = "given_recently"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"
    BUDGET = "budget"
    COLD_START = "cold_start"  # not found, but given for a session's start
    DROPPED = "dropped"  # for a reason that nobody gave


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
    made of, by name. `via`: what brought it here other than its own score; the floor does not hold for it.
    `verdict`: why it is not injected, set by the code that decides."""

    memory: Candidate
    score: float
    parts: dict[str, float] = field(default_factory=dict)
    via: str = ""
    verdict: str = ""


class Judged(Struct):
    """What is said of a candidate afterwards: no text."""

    id: int
    score: float
    parts: dict[str, float]
    verdict: str
    via: str = ""


class Below(Struct):
    """Candidates under the floor, in columns: nobody needs more of them than their scores."""

    ids: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=dict)

    def judged(self) -> list[Judged]:
        return [
            Judged(memory_id, score, {name: column[n] for name, column in self.parts.items()}, Verdict.BELOW_FLOOR)
            for n, (memory_id, score) in enumerate(zip(self.ids, self.scores, strict=True))
        ]


class Ranked(Struct):
    """All that was found, best first. `memories`: read as a whole; `gone`: of them, those that stand no more. `below` the
    floor: worked out when it is asked for, an answer does not wait for it. `weights`: idf of the query's terms that carry
    a topic."""

    memories: list[Scored]
    weights: Mapping[str, float] = field(default_factory=dict)
    below: Callable[[], Below] = Below
    gone: list[Scored] = field(default_factory=list)

    def undecided(self) -> Ranked:
        """The same for another asker: its verdicts are its own."""
        return Ranked([Scored(s.memory, s.score, s.parts, s.via) for s in self.memories], self.weights, self.below)

    def in_order(self, ordered: list[Scored]) -> Ranked:
        """What stands of it, in another order, with what joins it."""
        ids = {scored.memory.id for scored in ordered}
        gone = [scored for scored in self.memories if scored.memory.id not in ids]
        for scored in gone:
            scored.verdict = Verdict.EXPIRED if scored.memory.superseded_by is None else Verdict.SUPERSEDED
        return Ranked(ordered, self.weights, self.below, gone)

    def judged(self, injected: set[int]) -> list[Judged]:
        """What was read, each with its verdict, where the memories `injected` (ids) were."""
        return [
            Judged(
                s.memory.id,
                s.score,
                s.parts,
                Verdict.INJECTED if s.memory.id in injected else s.verdict or Verdict.DROPPED,
                s.via,
            )
            for s in [*self.memories, *self.gone]
        ]
