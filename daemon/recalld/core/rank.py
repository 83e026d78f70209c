"""Absolute scores: what a memory is worth for a query, whatever else was found. One linear model of eight parts.

    score = sum of WEIGHTS[part] x part

The parts and the data they were measured on: ARCHITECTURE.md, "Ranking". idf holds in a small store too: the store's
counts are added to those of BACKGROUND_DOCS documents of general text (measured once, shipped).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from recalld.core.features import SAYS_WHEN, Numbers, Rows, number_of
from recalld.core.words import FUNCTION_WORDS, stem, terms

BACKGROUND_DOCS = 3_000  # weight of the background, in documents
QUERY_TERMS_MAX = 64  # a prompt of many lines is scored by its 64 rarest terms
NEIGHBOUR = 0.5  # weight of each neighbour's vector in a turn's window
CONTEXT = 0.4  # weight of a term that was said before, and not asked

WEIGHTS: Mapping[str, float] = {
    "window": 1.0,  # cosine of the query and of the turn with its neighbours
    "lexical": 0.59,  # idf-weighted share of the query's terms that the memory has
    "passage": 0.34,  # the same of its best passage, by the person that the query names
    "before": 0.59,  # the share of them that only the turn before has
    "session": 0.47,  # the share that its session has
    "date": 0.90,  # it is from the time that the query names
    "when": 0.28,  # the query asks when, and the memory says when
    "unknown": -0.28,  # the query names what this namespace has never heard of
}

Floats = npt.NDArray[np.float64]

# A question of nothing else has no content; the last ones are what is left of contractions.
EMPTY_WORDS = FUNCTION_WORDS | frozenset(terms("kind type sort s t re ve ll d m"))
_ASKS_WHEN = re.compile(r"\s*(?:when|how long|what (?:date|day|month|year|time))\b", re.IGNORECASE)
_MONTH_NAMES = "january february march april may june july august september october november december"
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES.split(), 1)}
_DATE = re.compile(
    rf"\b(?:(?P<before>\d{{1,2}})(?:st|nd|rd|th)?\s*(?:of\s+)?)?(?P<month>{'|'.join(_MONTHS)})\b"
    r"(?:\s+(?P<after>\d{1,2})\b(?:st|nd|rd|th)?)?(?:\s*,?\s*(?P<year>\d{4}))?|\b(?P<alone>(?:19|20)\d\d)\b",
    re.IGNORECASE,
)
_CAPITALISED = re.compile(r"[^\W_]+")
_SENTENCE_ENDS = '.?!:"“”\n'


class Background(Struct, frozen=True):
    """Document frequencies of general text: `share[term]` of `docs` documents; a term that is not in it is rare."""

    share: Mapping[str, float]
    rare: float


class Time(NamedTuple):
    """What a query says of the time it asks about."""

    year: int | None
    month: int | None
    day: int | None


class Query(Struct, frozen=True):
    """What is asked, as scoring needs it. `idf`: of each distinct term; `content` those that carry a topic."""

    idf: Mapping[str, float]
    content: tuple[str, ...]
    names_unknown: bool
    asks_when: bool
    time: Time | None


def understand(text: str, context: str, df: Mapping[str, int], docs: int, background: Background) -> Query:
    """`context`: what was said before, whose terms count for less. `df`: of the terms of both among the namespace's
    `docs` memories."""
    said = dict.fromkeys(terms(text))
    idf = {
        term: _idf(term, df.get(term, 0), docs, background) * (1.0 if term in said else CONTEXT)
        for term in (said | dict.fromkeys(terms(context)) if context else said)
    }
    if len(idf) > QUERY_TERMS_MAX:
        idf = dict(sorted(idf.items(), key=lambda item: -item[1])[:QUERY_TERMS_MAX])
    content = tuple(term for term in idf if term not in EMPTY_WORDS) or tuple(idf)
    unknown = bool(docs) and any(not df.get(term, 0) for term in _named(text, background) if term in idf)
    return Query(idf, content, unknown, _ASKS_WHEN.match(text) is not None, time_of(text))


def _idf(term: str, df: int, docs: int, background: Background) -> float:
    """-ln of a term's share of documents, background and store taken together."""
    expected = background.share.get(term, background.rare) * BACKGROUND_DOCS
    return -math.log((expected + df + 0.5) / (BACKGROUND_DOCS + docs + 1))


def _named(text: str, background: Background) -> list[str]:
    """Terms written with a capital inside a sentence; the first of one only if general text hardly knows it."""
    found = []
    for match in _CAPITALISED.finditer(text):
        word = match[0]
        if not word[0].isupper() or word.lower() in _MONTHS:
            continue
        term = stem(word.lower())
        before = text[: match.start()].rstrip(" \t")
        first = not before or before[-1] in _SENTENCE_ENDS
        if term not in EMPTY_WORDS and not (first and background.share.get(term, 0.0) > 0):
            found.append(term)
    return found


def time_of(text: str) -> Time | None:
    """The first month that is named with its day or year as far as given, else the last year."""
    found = None
    for match in _DATE.finditer(text):
        month = _MONTHS.get((match["month"] or "").lower())
        day, year = match["before"] or match["after"], match["year"] or match["alone"]
        if match["month"] and match["month"].lower() == "may" and not (day or year):
            continue  # the verb
        found = Time(int(year) if year else None, month, int(day) if day else None)
        if month:
            break
    return found


def parts(query: Query, vector: npt.NDArray[np.float32] | None, rows: Rows) -> dict[str, Floats]:
    """Each part of the score of each memory that was asked for. `vector`: the query's, None if it came too late."""
    names = {
        number for pair in set(rows.names) for name in pair for number in np.frombuffer(name, dtype="<u4").tolist()
    }
    content = [term for term in query.content if number_of(term) not in names] or list(query.content)
    worth = np.array([query.idf[term] for term in content])
    total = max(float(worth.sum()), 1e-9)
    asked = np.array([number_of(term) for term in content], dtype=np.uint32)
    passages = _hits(asked, rows.numbers, rows.passage, len(rows.owner))
    memories = np.logical_or.reduceat(passages, rows.starts)
    own = memories[: len(rows.ids)]
    lexical = own @ worth / total
    with_before = (own | _of(memories, rows.before)) @ worth / total
    said = np.concatenate([*rows.session_numbers, np.empty(0, dtype=np.uint32)])
    session = np.repeat(np.arange(len(rows.session_numbers)), [len(n) for n in rows.session_numbers])
    sessions = _hits(asked, said, session, len(rows.session_numbers)) @ worth / total
    return {
        "window": _window(vector, rows),
        "lexical": lexical,
        "passage": _best_passage(query, passages @ worth / total, rows),
        "before": with_before - lexical,
        "session": sessions[rows.session],
        "date": _dated(query.time, rows.created_ms),
        "when": (rows.flags & SAYS_WHEN > 0) * float(query.asks_when),
        "unknown": np.full(len(rows.ids), float(query.names_unknown)),
    }


def scores(found: Mapping[str, Floats]) -> Floats:
    """From about -0.3 to 3; what answers a question is seldom below 1."""
    return np.asarray(sum(WEIGHTS[name] * values for name, values in found.items()))


def _hits(asked: Numbers, numbers: Numbers, owner: npt.NDArray[np.intp], owners: int) -> npt.NDArray[np.bool_]:
    """Shape (owners, len(asked)): whose numbers have which of those asked for."""
    hits = np.zeros((owners, len(asked)), dtype=bool)
    # of thousands of numbers a handful is asked for: their lower halves tell nearly all of the others apart
    wanted = np.zeros(1 << 16, dtype=bool)
    wanted[asked & 0xFFFF] = True
    places = np.flatnonzero(wanted[numbers & 0xFFFF])
    if len(places):
        order = np.argsort(asked)
        found = numbers[places]
        column = order[np.minimum(np.searchsorted(asked, found, sorter=order), len(asked) - 1)]
        matched = asked[column] == found
        hits[owner[places[matched]], column[matched]] = True
    return hits


def _of(values: npt.NDArray[np.bool_], rows: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """The values of those rows; none of no row (-1)."""
    return values[rows] & (rows >= 0)[:, None]


def _window(vector: npt.NDArray[np.float32] | None, rows: Rows) -> Floats:
    if vector is None:
        return np.zeros(len(rows.ids))
    window = rows.vectors[: len(rows.ids)].copy()
    for beside in (rows.before, rows.after):
        window += NEIGHBOUR * rows.vectors[beside] * (beside >= 0)[:, None]
    lengths = np.maximum(np.linalg.norm(window, axis=1), 1e-9)
    return np.asarray(window @ vector / lengths, dtype=np.float64)


def _best_passage(query: Query, coverage: Floats, rows: Rows) -> Floats:
    """Of each memory's passages; where the query names one of the two who speak, of those that they say."""
    asked = {number_of(term) for term in query.idf}
    named = {pair: _speaker_named(pair, asked) for pair in set(rows.names)}
    speakers = np.array([named[pair] for pair in rows.names])
    mine = int(np.searchsorted(rows.owner, len(rows.ids)))
    wanted = speakers[rows.owner[:mine]]
    counted = np.where((wanted < 0) | (wanted == rows.speaker[:mine]), coverage[:mine], 0.0)
    return np.asarray(np.maximum.reduceat(counted, rows.starts[: len(rows.ids)]))


def _speaker_named(names: tuple[bytes, bytes], asked: set[int]) -> int:
    """0 or 1, whose name stands in the query; -1 where neither or both do."""
    found = [who for who, name in enumerate(names) if asked.intersection(np.frombuffer(name, dtype="<u4").tolist())]
    return found[0] if len(found) == 1 else -1


def _dated(time: Time | None, created_ms: npt.NDArray[np.int64]) -> Floats:
    """1 for a memory of the time asked about; 0.4 for one told shortly after it; 0.3 for the year alone."""
    if time is None:
        return np.zeros(len(created_ms))
    when = created_ms.astype("datetime64[ms]")
    month = when.astype("datetime64[M]").astype(np.int64)  # since 1970-01
    year = month // 12 + 1970
    if time.month is None:
        return np.asarray(0.3 * (year == time.year))
    asked = ((time.year if time.year is not None else year) - 1970) * 12 + time.month - 1
    if time.day is None or time.year is None:
        return np.select([month == asked, month == asked + 1], [1.0, 0.4], 0.0)
    first = np.datetime64(f"{time.year:04}-{time.month:02}-01")
    days = (when.astype("datetime64[D]") - first).astype(np.int64) - (min(max(time.day, 1), 28) - 1)
    return np.select([(days >= -1) & (days <= 4), (days >= 0) & (days <= 40)], [1.0, 0.4], 0.0)
