"""Memories offered beside what is searched: those of entities that a prompt names, and of directives that it meets.

In the word search's lane, under the same deadline. The record is asked only where the namespace knows such an entity or
a directive matches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct, field

from recalld.core.directives import Directive, Then, covers, matching
from recalld.core.entities import Entities
from recalld.core.pack import RecallSettings
from recalld.core.words import terms
from recalld.edge.reader import Reader

ENTITY_MEMORIES_MAX = 2  # for each entity in a prompt
PROPOSED = 4  # times the memories that a directive may give: so many are looked at for its words


class Offered(Struct):
    """`ids`: candidates beside the searched ones. `directed`: of them, those of a directive, by name."""

    ids: list[int] = field(default_factory=list)
    directed: dict[int, str] = field(default_factory=dict)


Search = Callable[[Sequence[str], int], list[int]]
"""(terms, limit) -> ids, best first."""


def look_up(
    namespace: str,
    prompt: str,
    asked_terms: Sequence[str],
    settings: RecallSettings,
    entities: Entities,
    reader: Reader,
    search: Search,
    now_ms: int,
    *,
    first: bool,
) -> Offered:
    """`asked_terms`: those of the prompt and its context: what a follow-up is about stands there. A directive is
    met by the prompt alone. Raises StorageError."""
    named = entities.named(asked_terms)
    offered = Offered()
    for entity in named:
        offered.ids += reader.newest_about(namespace, "entity", entity, now_ms, ENTITY_MEMORIES_MAX)
    met = matching(settings.directives, terms(prompt), named, first=first) if settings.directives else ()
    for number, directive in met:
        room = settings.directives_max - len(offered.directed)
        found = _directed(namespace, directive, entities, reader, search, now_ms) if room > 0 else []
        offered.directed.update((i, str(number)) for i in [i for i in found if i not in offered.directed][:room])
    offered.ids += offered.directed
    return offered


def _directed(
    namespace: str, directive: Directive, entities: Entities, reader: Reader, search: Search, now_ms: int
) -> list[int]:
    then: Then = directive.then
    if then.category:
        return reader.newest_about(namespace, "category", then.category, now_ms, directive.limit)
    if then.entity:
        spellings = entities.named(terms(then.entity)) or [then.entity]
        found = [
            i for name in spellings for i in reader.newest_about(namespace, "entity", name, now_ms, directive.limit)
        ]
        return found[: directive.limit]
    ids = search(terms(then.query), PROPOSED * directive.limit)
    held = reader.standing_terms(namespace, ids, now_ms)
    return [i for i in ids if i in held and covers(then.query, held[i].split())][: directive.limit]
