"""A question on its way through recall."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from msgspec import Struct, field

from recalld.core.pack import RecallSettings
from recalld.core.scored import Ranked
from recalld.edge.embed import Vector
from recalld.service.lookups import Offered
from recalld.wire.messages import ContextBody

CANDIDATES = 16  # from each lane, and their neighbours; were every memory scored, .752 were injected for .751
RANKING_SECONDS = 0.008  # to rank and pack, on a busy machine
SENDING_SECONDS = 0.004


class Asked(Struct, frozen=True):
    """What those who ask the same have in common."""

    namespace: str
    query: str
    context: str
    settings: RecallSettings
    first: bool

    def __hash__(self) -> int:  # settings have tables in them, and are nearly always the same
        return hash((self.namespace, self.query, self.context, self.first))


class Question(Struct, eq=False):
    """What is asked, until when (monotonic seconds), and where the answer goes.

    `query`: the asker's own words; `context`: those of recent turns, which help at a lower weight.
    `limit` None: an injection (floor, budget); else a ranked list of so many. `answer` is called once, in one of
    recall's threads or in the asker's, and must not block. `session` names the agent's conversation,
    `session_id` its transcript. `stages`: when each step of it was done. `source`: where what was found comes from.
    `watch`: a question that is asked to see what comes of it: nothing is counted, logged or taken for given, and `watch`
    gets what the log would. `first`: the session's first prompt, where directives ask for that.
    """

    key: str
    namespace: str
    query: str
    started: float
    deadline: float
    answer: Callable[[ContextBody], None]
    settings: RecallSettings
    session: str = ""
    context: str = ""
    agent: str = ""
    session_id: str | None = None
    run_id: str = ""
    limit: int | None = None
    watch: Callable[[Question, Ranked | None, ContextBody], None] | None = None
    source: Literal["search", "shared", "cache"] = "search"
    generation: int = 0
    vector: Vector | None = None  # of a remote embedder
    terms: list[str] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict)
    answered: bool = False
    offered: Offered = field(default_factory=Offered)
    first: bool = False

    def done(self, stage: str) -> None:
        self.stages[stage] = time.monotonic()

    @property
    def whole(self) -> str:
        """Query and context as one text."""
        return f"{self.query}\n{self.context}" if self.context else self.query

    @property
    def same(self) -> Asked | None:
        """All that what is found depends on; None where it is to be searched for in any case."""
        if self.watch or self.limit is not None:
            return None
        return Asked(self.namespace, self.query, self.context, self.settings, self.first)

    @property
    def candidates(self) -> int:
        """How many each lane proposes."""
        return max(CANDIDATES, self.limit or 0)

    @property
    def cutoff(self) -> float:
        """When the searches must be done, so that the answer can be."""
        return self.deadline - min(self.settings.margin_ms / 1000, (self.deadline - self.started) / 3)

    @property
    def last_moment(self) -> float:
        """When an answer must be sent, whatever has become of the ranking."""
        return self.deadline - min(SENDING_SECONDS, (self.deadline - self.started) / 12)

    @property
    def latest(self) -> float:
        """From when on ranking is not begun: an error in time is better than memories that are late."""
        return self.deadline - min(RANKING_SECONDS, (self.deadline - self.started) / 6)
