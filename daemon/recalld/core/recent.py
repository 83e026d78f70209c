"""What was found a moment ago, for whoever asks the same again before anything was written. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

ENTRIES_MAX = 128  # an agent that asks the same again does so at once; each entry holds a handful of memories

V = TypeVar("V")


@dataclass(frozen=True)
class _Entry(Generic[V]):
    value: V
    generation: int
    until: float


class RecentlyFound(Generic[V]):
    """By what was asked for. An entry holds for one `generation` of what could be found, and until its time."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry[V]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: Hashable, value: V, generation: int, until: float) -> None:
        """Where there are too many, the oldest goes."""
        self._entries.pop(key, None)
        self._entries[key] = _Entry(value, generation, until)
        if len(self._entries) > ENTRIES_MAX:
            del self._entries[next(iter(self._entries))]

    def get(self, key: Hashable, generation: int, now: float) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.generation != generation or entry.until <= now:
            del self._entries[key]
            return None
        return entry.value
