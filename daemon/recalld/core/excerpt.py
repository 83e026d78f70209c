"""The part of a long memory that answers a query, cut where sentences end.

A turn may run to a dozen lines. Its head and tail are seldom what was asked for; the sentences that hold the rare words
of the query, with their neighbours, are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set

from msgspec import Struct

from recalld.core.block import flat
from recalld.core.words import Wanted

GAP = " … "
CHARS_MIN = 40  # an excerpt of less says nothing
SENTENCE_CHARS_MAX = 240  # a longer one, or a line without any full stop, is cut between words
MATTERS = 0.7  # of the best sentence's weight: what holds less of the query is only taken as a neighbour. Measured:
# tests/calibration/measure_injection.py, and ARCHITECTURE.md, "What reaches the prompt"

_ENDS = re.compile(r"[.!?…][\"'”’)]*\s+|[。！？]")
_SPEAKER = re.compile(r"[^\W\d_][\w .'’-]{0,40}: ")


class Sentence(Struct, frozen=True):
    """`speaker`: the `Name: ` that its part of the turn begins with; `heads`: whether this sentence is where."""

    text: str
    speaker: str
    heads: bool
    starts_line: bool


class Excerpt(Struct, frozen=True):
    """`kept`: which sentences it holds; None: all of them."""

    text: str
    kept: Set[int] | None


class Passage:
    """A text that may be cut. `weights`: the terms of the query's topic, as `core.words.terms` makes them, with their idf."""

    def __init__(self, text: str, weights: Mapping[str, float]) -> None:
        self.whole = flat(text)
        self._text = text
        self._weights = weights
        self._sentences: list[Sentence] | None = None
        self._order: list[int] = []
        self._telling: frozenset[int] = frozenset()

    def cut(self, chars_max: int) -> Excerpt | None:
        """At most `chars_max` characters of it, in order; None where that would say nothing."""
        if len(self.whole) <= chars_max:
            return Excerpt(self.whole, None)
        if chars_max < CHARS_MIN:
            return None
        sentences = self._read()
        taken: set[int] = set()
        room = chars_max - len(GAP)
        for i in self._order:
            cost = len(sentences[i].text) + len(GAP)
            if not {i - 1, i + 1} & taken:  # it stands alone: a mark of what is left out, and who speaks
                cost += len(sentences[i].speaker) + len("… ")
            if cost <= room:
                taken.add(i)
                room -= cost
            elif not self._telling:  # the head is not the head with holes in it
                break
        if taken:
            return Excerpt(self._joined(taken), frozenset(taken))
        first = self._joined({self._order[0]})[: chars_max - 2]
        return Excerpt(f"{first.rpartition(' ')[0] or first} …", frozenset())

    def tells_more(self, shown: Set[int]) -> bool:
        """Whether a sentence that the query asks for is not among these."""
        self._read()
        return not self._telling <= shown

    def _read(self) -> list[Sentence]:
        """The sentences. `_order` is the one in which they are wanted: those that hold most of the query, then what is
        around them, ever further away; where none holds any of it, from the beginning."""
        if self._sentences is None:
            self._sentences = list(_sentences(self._text))
            wanted = Wanted(self._weights)
            held = (wanted.among(s.text.removeprefix(s.speaker)) for s in self._sentences)
            weights = [sum(map(self._weights.__getitem__, found)) for found in held]
            floor = max(weights, default=0.0) * MATTERS
            telling = sorted((i for i, w in enumerate(weights) if w >= floor > 0), key=lambda i: -weights[i])
            order = dict.fromkeys(telling or [0])
            queue = list(order)
            for i in queue:
                for j in (i + 1, i - 1):
                    if 0 <= j < len(weights) and j not in order:
                        order[j] = None
                        queue.append(j)
            self._order = queue
            self._telling = frozenset(telling)
        return self._sentences

    def _joined(self, taken: Set[int]) -> str:
        """The sentences in order, with what is left out marked, and each speaker named where his part begins."""
        sentences = self._read()
        out: list[str] = []
        before, speaker = -1, ""
        for i in sorted(taken):
            sentence = sentences[i]
            named = sentence.speaker if sentence.speaker != speaker and not sentence.heads else ""
            if i == before + 1:
                out.append((" / " if sentence.starts_line else " ") if out else "")
            elif named:
                out.append(f"{GAP if out else ''}{named}… ")
            else:
                out.append(GAP if out else "… ")
            out.append(sentence.text)
            before, speaker = i, sentence.speaker
        if before < len(sentences) - 1:
            out.append(" …")
        return "".join(out)


def _sentences(text: str) -> Iterator[Sentence]:
    speaker = ""
    for line in filter(None, map(str.strip, text.splitlines())):
        label = _SPEAKER.match(line)
        speaker = label[0] if label else speaker
        starts_line = True
        at = 0
        for end in (*(found.end() for found in _ENDS.finditer(line)), len(line)):
            for piece in _pieces(line[at:end].rstrip()):
                yield Sentence(piece, speaker, starts_line and label is not None, starts_line)
                starts_line = False
            at = end


def _pieces(sentence: str) -> Iterator[str]:
    while len(sentence) > SENTENCE_CHARS_MAX:
        at = sentence.rfind(" ", CHARS_MIN, SENTENCE_CHARS_MAX + 1)
        at = SENTENCE_CHARS_MAX if at < 0 else at
        yield sentence[:at]
        sentence = sentence[at:].lstrip()
    if sentence:
        yield sentence
