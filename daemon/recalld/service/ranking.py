"""What the searches found, scored in full: candidates in, memories of the asking namespace with their scores out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from recalld.core import rank
from recalld.core.scored import Scored
from recalld.edge.embed import Vector
from recalld.edge.lexical import LexicalHits
from recalld.edge.reader import Reader


class VectorHits(Struct):
    query: Vector
    ids: list[int]


class Ranker:
    """`rank` from any thread."""

    def __init__(self, background: rank.Background) -> None:
        self._background = background

    def searched(self, query_terms: Sequence[str]) -> list[str]:
        """The terms to search for."""
        return list(rank.weigh(query_terms, {}, 0, self._background).idf)

    def rank(
        self,
        namespace: str,
        query_terms: Sequence[str],
        words: LexicalHits | None,
        near: VectorHits | None,
        reader: Reader,
        wanted: float,
    ) -> list[Scored]:
        """Best first. `wanted`: so many (int), or those with at least this score (float). None: that search was late.

        Only they are read as a whole: of sixty candidates a prompt gets a handful.
        """
        ids = dict.fromkeys([*(words.ids if words else ()), *(near.ids if near else ())])
        if not ids:
            return []
        found = reader.entries(list(ids))
        weights = rank.weigh(query_terms, words.df if words else {}, words.docs if words else 0, self._background)
        lexical = rank.coverages(weights, found.numbers, found.counts)
        cosine = found.vectors @ near.query if near else np.zeros(len(found.ids), dtype=np.float32)
        scores = rank.scores(lexical, cosine).round(4)
        best = sorted(range(len(found.ids)), key=lambda i: (-scores[i], found.ids[i]))
        best = best[:wanted] if isinstance(wanted, int) else [i for i in best if scores[i] >= wanted]
        rows = reader.candidates(namespace, [found.ids[i] for i in best]) if best else []
        by_id = {row.id: row for row in rows}
        return [
            Scored(row, float(scores[i]), {"lexical": float(lexical[i]), "vector": float(cosine[i])})
            for i in best
            if (row := by_id.get(found.ids[i])) is not None
        ]
