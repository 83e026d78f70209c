"""Two searches against one deadline. Pure: who is awaited, what is ready, and what must be sent now."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Q = TypeVar("Q")
R = TypeVar("R")


@dataclass
class Runner(Generic[Q, R]):
    """One question under way. `results` holds each lane's result; a lane that failed has None."""

    question: Q
    cutoff: float
    results: dict[str, R | None] = field(default_factory=dict)

    def late(self, lanes: tuple[str, ...]) -> tuple[str, ...]:
        """The lanes that have given nothing, by lateness or failure."""
        return tuple(lane for lane in lanes if self.results.get(lane) is None)


class Race(Generic[Q, R]):
    """Questions wait for all `lanes` or for their cutoff, whichever comes first. Each is finished exactly once."""

    def __init__(self, lanes: tuple[str, ...]) -> None:
        self.lanes = lanes
        self._runners: dict[str, Runner[Q, R]] = {}
        self._cutoffs: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._runners)

    def start(self, key: str, question: Q, cutoff: float) -> bool:
        """False if the key is under way already (an asker that repeats itself)."""
        if key in self._runners:
            return False
        self._runners[key] = Runner(question, cutoff)
        heapq.heappush(self._cutoffs, (cutoff, key))
        return True

    def result(self, key: str, lane: str, value: R | None) -> Runner[Q, R] | None:
        """A lane's result, None if it failed. Returns the runner if it is complete now; a late result is dropped."""
        runner = self._runners.get(key)
        if runner is None:
            return None
        runner.results[lane] = value
        if len(runner.results) < len(self.lanes):
            return None
        return self._runners.pop(key)

    def next_cutoff(self) -> float | None:
        while self._cutoffs and self._stale(*self._cutoffs[0]):
            heapq.heappop(self._cutoffs)
        return self._cutoffs[0][0] if self._cutoffs else None

    def due(self, now: float) -> list[Runner[Q, R]]:
        """The runners whose cutoff has come, earliest first."""
        out: list[Runner[Q, R]] = []
        while (at := self.next_cutoff()) is not None and at <= now:
            _, key = heapq.heappop(self._cutoffs)
            out.append(self._runners.pop(key))
        return out

    def _stale(self, cutoff: float, key: str) -> bool:
        runner = self._runners.get(key)
        return runner is None or runner.cutoff != cutoff
