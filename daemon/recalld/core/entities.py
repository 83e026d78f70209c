"""The entities that a namespace knows, and which of them a prompt names."""

from __future__ import annotations

from collections.abc import Sequence

from recalld.core.words import terms

ENTITIES_MAX = 4_096  # of a namespace, about 2 MB: beyond them the newest at the last start are known by name
NAMED_MAX = 4  # in one prompt: each costs a look-up
NAME_TERMS_MAX = 6  # a longer name is a sentence


class Entities:
    """`add` from the event loop, `named` from any thread."""

    def __init__(self) -> None:
        self._by_first: dict[str, tuple[tuple[tuple[str, ...], str], ...]] = {}
        self._known: set[str] = set()

    def __len__(self) -> int:
        return len(self._known)

    def add(self, entity: str) -> bool:
        """False where there is no room for one more."""
        if entity in self._known:
            return True
        if len(self._known) >= ENTITIES_MAX:
            return False
        name = tuple(terms(entity)[:NAME_TERMS_MAX])
        if name:
            self._known.add(entity)
            self._by_first[name[0]] = (*self._by_first.get(name[0], ()), (name, entity))
        return True

    def named(self, prompt_terms: Sequence[str]) -> list[str]:
        """The entities whose names stand in a prompt, in its order, NAMED_MAX at most."""
        if self._by_first.keys().isdisjoint(prompt_terms):
            return []
        found: dict[str, None] = {}
        for at, term in enumerate(prompt_terms):
            for name, entity in self._by_first.get(term, ()):
                if len(found) < NAMED_MAX and tuple(prompt_terms[at : at + len(name)]) == name:
                    found[entity] = None
        return list(found)
