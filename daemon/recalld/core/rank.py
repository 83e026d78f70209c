"""Absolute scores: what a memory is worth for a query, whatever else was found.

score = coverage + VECTOR_WEIGHT x max(0, cosine)

coverage is the idf-weighted share of the query's terms that the memory has, in [0, 1]. idf holds in a small store too:
the store's counts are added to those of BACKGROUND_DOCS documents of general text (measured once, shipped).
cosine is that of the embeddings with the common component of general text removed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

BACKGROUND_DOCS = 3_000  # weight of the background, in documents; measured: ARCHITECTURE.md, "Ranking"
VECTOR_WEIGHT = 0.6
QUERY_TERMS_MAX = 64  # a prompt of many lines is searched by its 64 rarest terms


class Background(Struct, frozen=True):
    """Document frequencies of general text: `share[term]` of `docs` documents; a term that is not in it is rare."""

    share: Mapping[str, float]
    rare: float


class Weights(Struct, frozen=True):
    """A query's terms with their idf."""

    idf: dict[str, float]
    total: float


def weigh(query_terms: Collection[str], df: Mapping[str, int], docs: int, background: Background) -> Weights:
    """idf per distinct term: -ln of its share of documents, background and store (`df` of `docs`) taken together."""
    idf = {}
    for term in dict.fromkeys(query_terms):
        expected = background.share.get(term, background.rare) * BACKGROUND_DOCS
        idf[term] = -math.log((expected + df.get(term, 0) + 0.5) / (BACKGROUND_DOCS + docs + 1))
    if len(idf) > QUERY_TERMS_MAX:
        idf = dict(sorted(idf.items(), key=lambda item: -item[1])[:QUERY_TERMS_MAX])
    return Weights(idf, sum(idf.values()))


def coverage(weights: Weights, memory_terms: Iterable[str]) -> float:
    """The idf-weighted share, in [0, 1], of the query's terms that the memory has."""
    if not weights.total:
        return 0.0
    present = weights.idf.keys() & memory_terms
    return math.fsum(map(weights.idf.__getitem__, present)) / weights.total  # exact, so in whatever order


def score(lexical: float, cosine: float) -> float:
    """In [0, 1 + VECTOR_WEIGHT]."""
    return lexical + VECTOR_WEIGHT * max(0.0, cosine)
