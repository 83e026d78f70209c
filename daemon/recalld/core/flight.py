"""Searches under way, which everyone who asks the same meanwhile shares. Pure: who waits for what, and what was found."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Q = TypeVar("Q")
R = TypeVar("R")


@dataclass(eq=False)
class Flight(Generic[Q, R]):
    """A search of all lanes. `askers`: the first is who began it. `found`: by lane, None where it failed."""

    key: Hashable | None
    generation: int
    askers: list[Q]
    until: float
    found: dict[str, R | None] = field(default_factory=dict)


class Flights(Generic[Q, R]):
    """Each with the cutoff of its most patient asker."""

    def __init__(self, lanes: tuple[str, ...]) -> None:
        self._lanes = lanes
        self._flights: dict[Hashable, Flight[Q, R]] = {}

    def join(self, key: Hashable, asker: Q, generation: int, now: float, until: float) -> Flight[Q, R] | None:
        """The flight that `asker` shares from now on; None where there is none for this key and generation, or where it
        may have been given up."""
        flight = self._flights.get(key)
        if flight is None or flight.generation != generation or flight.until <= now:
            return None
        flight.askers.append(asker)
        flight.until = max(flight.until, until)
        return flight

    def begin(self, key: Hashable | None, asker: Q, generation: int, until: float) -> Flight[Q, R]:
        """`key` None: shared with nobody."""
        flight = Flight[Q, R](key, generation, [asker], until)
        if key is not None:
            self._flights[key] = flight
        return flight

    def landed(self, flight: Flight[Q, R], lane: str, value: R | None) -> list[Q]:
        """A lane's result. Returns who waits for it now; who joins later finds it in `found`."""
        flight.found[lane] = value
        if len(flight.found) == len(self._lanes) and self._flights.get(flight.key) is flight:
            del self._flights[flight.key]
        return list(flight.askers)
