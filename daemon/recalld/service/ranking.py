"""What the searches found, scored in full: candidates in, memories of the asking namespace with their scores out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from msgspec import Struct

from recalld.core import rank
from recalld.core.scored import Below, Ranked, Scored
from recalld.edge.embed import Vector
from recalld.edge.features import FeatureIndex
from recalld.edge.lexical import LexicalHits
from recalld.edge.reader import Reader
from recalld.service.lookups import Offered


class VectorHits(Struct):
    query: Vector
    ids: list[int]


class Ranker:
    """`rank` from any thread."""

    def __init__(self, background: rank.Background) -> None:
        self._background = background

    def rank(
        self,
        namespace: str,
        query: str,
        context: str,
        words: LexicalHits | None,
        near: VectorHits | None,
        features: FeatureIndex,
        reader: Reader,
        wanted: float,
        offered: Offered,
    ) -> Ranked:
        """`wanted`: so many (int), or those with at least this score (float) and the directed ones. None: that
        search was late.

        What was found and its neighbours are scored; only what is wanted is read as a whole: a handful of eighty.
        """
        rows = features.read([*(words.ids if words else ()), *(near.ids if near else ()), *offered.ids])
        if not rows.ids:
            return Ranked([])
        asked = rank.understand(query, context, words.df if words else {}, words.docs if words else 0, self._background)
        query_vector = near.query if near and rows.vectors.size else None
        weights = {term: asked.idf[term] for term in asked.content}
        parts = rank.parts(asked, query_vector, rows)
        scores = rank.scores(parts).round(4)
        order = sorted(range(len(rows.ids)), key=lambda i: (-scores[i], rows.ids[i]))
        if isinstance(wanted, int):
            best = order[:wanted]
        else:
            best = [i for i in order if scores[i] >= wanted or rows.ids[i] in offered.directed]
        by_id = {row.id: row for row in reader.candidates(namespace, [rows.ids[i] for i in best])} if best else {}
        memories = [
            Scored(row, float(scores[i]), {name: float(values[i]) for name, values in parts.items()})
            for i in best
            if (row := by_id.get(rows.ids[i])) is not None
        ]
        if isinstance(wanted, int) or len(best) == len(order):
            return Ranked(memories, weights)
        low = [i for i in order if i not in best]
        return Ranked(memories, weights, partial(_below, rows.ids, scores, parts, low))


def _below(ids: Sequence[int], scores: rank.Floats, parts: Mapping[str, rank.Floats], low: Sequence[int]) -> Below:
    columns = np.stack(list(parts.values()))[:, low].round(4).tolist()
    return Below([ids[i] for i in low], scores[low].tolist(), dict(zip(parts, columns, strict=True)))


def searched(query_terms: Sequence[str]) -> list[str]:
    """The terms to search for: those that carry a topic, or all where none does."""
    return [term for term in query_terms if term not in rank.EMPTY_WORDS] or list(query_terms)
