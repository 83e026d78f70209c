"""Absolute scores: what a memory is worth for a query, whatever else was found.

score = coverage + VECTOR_WEIGHT x max(0, cosine)

coverage is the idf-weighted share of the query's terms that the memory has, in [0, 1]. idf holds in a small store too:
the store's counts are added to those of BACKGROUND_DOCS documents of general text (measured once, shipped).
cosine is that of the embeddings with the common component of general text removed.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterable, Mapping

import numpy as np
import numpy.typing as npt
from msgspec import Struct

BACKGROUND_DOCS = 3_000  # weight of the background, in documents; measured: ARCHITECTURE.md, "Ranking"
VECTOR_WEIGHT = 0.6
QUERY_TERMS_MAX = 64  # a prompt of many lines is searched by its 64 rarest terms


Numbers = npt.NDArray[np.uint32]
Counts = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]


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


def numbers_of(terms: Iterable[str]) -> Numbers:
    """The distinct terms of a memory as numbers (CRC-32), in any order: what its coverage is computed from."""
    return np.array(list({zlib.crc32(term.encode()) for term in terms}), dtype=np.uint32)


def coverages(weights: Weights, numbers: Numbers, counts: Counts) -> Scores:
    """The idf-weighted share, in [0, 1], of the query's terms that each memory has.

    `numbers`: those of all memories, one after the other; `counts`: how many each has. Two terms with one number (1 in
    4 billion) are taken for one.
    """
    if not weights.total or not len(numbers):
        return np.zeros(len(counts))
    asked = np.fromiter((zlib.crc32(term.encode()) for term in weights.idf), dtype=np.uint32, count=len(weights.idf))
    order = np.argsort(asked)
    asked, idf = asked[order], np.fromiter(weights.idf.values(), dtype=np.float64)[order]
    place = np.minimum(np.searchsorted(asked, numbers), len(asked) - 1)
    worth = np.where(asked[place] == numbers, idf[place], 0.0)
    owner = np.repeat(np.arange(len(counts)), counts)
    return np.bincount(owner, weights=worth, minlength=len(counts)) / weights.total


def scores(coverage: Scores, cosine: npt.NDArray[np.float32]) -> Scores:
    """In [0, 1 + VECTOR_WEIGHT]."""
    return coverage + VECTOR_WEIGHT * np.maximum(cosine, 0.0)
