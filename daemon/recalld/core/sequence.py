"""Which events of a publisher are stored: duplicates out, acknowledgements exact. Pure."""

from __future__ import annotations

from enum import Enum, auto

from recalld.wire.messages import UNACKED_MAX


class Offer(Enum):
    NEW = auto()
    STORED = auto()  # on disk already: acknowledge again
    UNDERWAY = auto()  # being stored: its acknowledgement will come


class Source:
    """One publisher's life. `upto`: every seq up to it is settled; `above`: stored ones beyond a gap."""

    def __init__(self, upto: int = 0, above: frozenset[int] = frozenset(), given_up: int = 0) -> None:
        self.upto = upto
        self.above = set(above)
        self.given_up = given_up
        self._underway: set[int] = set()

    @property
    def highest(self) -> int:
        return max(self.above, default=self.upto)

    def copy(self) -> Source:
        """What is stored, without what is under way."""
        return Source(self.upto, frozenset(self.above), self.given_up)

    def is_underway(self, seq: int) -> bool:
        return seq in self._underway

    def has(self, seq: int) -> bool:
        """Whether the event is settled: stored, or given up."""
        return seq <= self.upto or seq in self.above

    def offer(self, seq: int) -> Offer:
        """Decide about an event. NEW must be followed by `stored` or `failed`."""
        if self.has(seq):
            return Offer.STORED
        if seq in self._underway:
            return Offer.UNDERWAY
        self._underway.add(seq)
        return Offer.NEW

    def stored(self, seq: int) -> None:
        """The event is on disk."""
        self._underway.discard(seq)
        if seq > self.upto:
            self.above.add(seq)
        self._advance()
        while (
            len(self.above) > UNACKED_MAX
        ):  # the missing one is not coming: its sender's buffer is no longer than this
            lowest = min(self.above)
            self.given_up += lowest - self.upto - 1
            self.upto = lowest - 1
            self._advance()

    def failed(self, seq: int) -> None:
        """The event could not be stored; it may be offered again."""
        self._underway.discard(seq)

    def settle_below(self, oldest: int) -> None:
        """The sender has nothing older than `oldest` left: what is missing below it never comes."""
        if oldest - 1 > self.upto:
            self.given_up += oldest - 1 - self.upto - sum(1 for s in self.above if s < oldest)
            self.upto = oldest - 1
            self.above = {s for s in self.above if s > self.upto}
            self._advance()

    def _advance(self) -> None:
        while self.upto + 1 in self.above:
            self.upto += 1
            self.above.discard(self.upto)
