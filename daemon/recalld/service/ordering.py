"""From relevance to order: successors for what was superseded, bonuses, links; each read in the asking namespace."""

from __future__ import annotations

from collections.abc import Sequence

from recalld.core.pack import RecallSettings
from recalld.core.policy import adjust, joined, linked_to, succeeded
from recalld.core.scored import Scored
from recalld.edge.reader import Reader
from recalld.service.lookups import Offered


def order(
    namespace: str,
    ranked: Sequence[Scored],
    offered: Offered,
    settings: RecallSettings,
    reader: Reader,
    now_ms: int,
    *,
    follow_links: bool,
) -> list[Scored]:
    """What stands of the ranked memories, in the order in which they are to be given, linked ones last.

    The record is asked only where one was superseded, or links are to be followed. Raises StorageError.
    """
    superseded = [one.memory.id for one in ranked if one.memory.superseded_by is not None]
    if superseded:
        ids = reader.successors(namespace, superseded)
        rows = {row.id: row for row in reader.candidates(namespace, sorted(set(ids.values())))} if ids else {}
        ranked = succeeded(ranked, {old: rows[new] for old, new in ids.items() if new in rows})
    ordered = adjust(ranked, now_ms, settings.source_priors, offered.directed, settings.floor)
    if follow_links and ordered:
        chosen = ordered[: settings.items_max]
        partners = linked_to(chosen, reader.links(namespace, [one.memory.id for one in chosen]))
        for one in ordered[settings.items_max :]:
            partners.pop(one.memory.id, None)
        if partners:
            ordered += joined(partners, reader.candidates(namespace, list(partners)), now_ms)
    return ordered
