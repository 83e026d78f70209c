"""Whether a memory says what another one says already, so that five places in a prompt hold five different things."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from msgspec import Struct

from recalld.core.words import terms

PAIRS_SHARED = 0.8  # measured: tests/calibration/measure_injection.py, and ARCHITECTURE.md, "What reaches the prompt"
COMMON = 0.02  # a term of so large a share of general text (150 terms) says nothing by itself
COMPARED_CHARS = 1_000  # of a text: what is said again is said early

_WORD = re.compile(r"[^\W_]+")
_TELLING = frozenset(terms("up down before after new old right first last one two three four five may more most less"))
_NEGATION = re.compile(
    r"\b(?:not|no|never|nor|none|nothing|neither|cannot|without)\b|n['’]t\b"
    r"|\b(?:do|does|did|is|are|was|were|ca|wo|could|would|should|has|have|had)nt\b",
    re.IGNORECASE,
)


class Said(Struct, frozen=True):
    """What two texts are compared by: which words follow which."""

    text: str
    pairs: frozenset[tuple[str, str]]


def said(text: str) -> Said:
    text = text[:COMPARED_CHARS]
    return Said(text, frozenset(pairwise(_WORD.findall(text.lower()))))


def adds_nothing(new: Said, old: Said, share: Mapping[str, float]) -> bool:
    """Whether `old` says all that `new` says: PAIRS_SHARED of its pairs of words, no less and no more denied, and what is
    new in it are common words only. `share`: of the documents of general text, by term.

    Pairs, because the words of a short memory are found somewhere in most long ones; no rare word, because two memories
    may differ in the one that matters.
    """
    if not new.pairs or len(new.pairs & old.pairs) < PAIRS_SHARED * len(new.pairs):
        return False
    if (_NEGATION.search(new.text) is None) != (_NEGATION.search(old.text) is None):
        return False
    unknown = set(terms(new.text)).difference(terms(old.text))
    return all(share.get(term, 0.0) >= COMMON and term not in _TELLING for term in unknown)
