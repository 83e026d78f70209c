"""Text to index terms: one analyser for storing, for searching and for scoring."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import Stemmer

ANALYSER = "terms-2"  # changes whenever `terms` would give something else; stored terms are then made anew

# Words of letters and digits; ideographs and kana, which are written without spaces, become overlapping pairs.
_WORD = re.compile(r"[^\W_]+")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]+")
_POSSESSIVE = re.compile(r"['’](?:s|re|ve|ll|d|m|t)\b")
_TERM_CHARS_MAX = 64  # longer ones are keys and blobs, which nobody asks for by word
_stemmer = Stemmer.Stemmer("english")

# The stemmer knows endings only: the commonest forms that have none, after the word they belong to.
_FORMS = """
be am is are was were been being|have has had|do does did done|go goes went gone|get got gotten|buy bought
bring brought|think thought|teach taught|catch caught|fight fought|seek sought|feel felt|keep kept|sleep slept
leave left|meet met|lose lost|win won|make made|say said|tell told|sell sold|find found|hold held|hear heard
stand stood|understand understood|build built|send sent|spend spent|lend lent|bend bent|lead led|feed fed|come came
become became|begin began begun|drink drank drunk|sing sang sung|swim swam swum|ring rang rung|sit sat
give gave given|eat ate eaten|fall fell fallen|see saw seen|take took taken|know knew known|grow grew grown
throw threw thrown|fly flew flown|draw drew drawn|write wrote written|drive drove driven|ride rode ridden
rise rose risen|speak spoke spoken|break broke broken|choose chose chosen|wake woke woken|wear wore worn
tear tore torn|forget forgot forgotten|hide hid hidden|bite bit bitten|shake shook shaken|mean meant|pay paid
shoot shot|stick stuck|strike struck|hang hung|dig dug|light lit|deal dealt|dream dreamt|learn learnt|burn burnt
child children|man men|woman women|person people|mouse mice|foot feet|tooth teeth|life lives|wife wives|knife knives
good better best|bad worse worst"""
_IRREGULAR = {
    form: word for line in re.split(r"[\n|]", _FORMS.strip()) for word, *forms in [line.split()] for form in forms
}


_FUNCTION_WORDS = """a an the and or but if of to in on at by for from with about as into over after before than then so
very just i me my mine we us our you your he him his she her it its they them their this that these those there here
is am are was were be been being do does did done have has had having will would can could should shall may might must
what when where which who whom whose why how not no yes some any many much thing"""


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """Of a lower-case word."""
    found: str = _stemmer.stemWord(_IRREGULAR.get(word, word))
    return found


# The first two letters of a term's forms that begin otherwise.
_OTHER_HEADS: dict[str, list[str]] = {}
for _form in _IRREGULAR:
    _OTHER_HEADS.setdefault(stem(_form), []).append(_form[:2])


def terms(text: str) -> list[str]:
    """The stemmed, lower-cased terms of a text, in order, with repetitions."""
    found: list[str] = []
    for word in _WORD.findall(_POSSESSIVE.sub("", text.lower())):
        if len(word) > _TERM_CHARS_MAX:
            continue
        if word.isascii():
            found.append(stem(word))
        else:
            found.extend(_split(word))
    return found


class Wanted:
    """Terms to look for: `among` finds those that a text holds, in a quarter of the time that all its terms take.

    A word is stemmed only if it begins with the two letters that one of the terms begins with. The few stems that begin
    otherwise (`die` of `dying`) are not found.
    """

    def __init__(self, wanted: Iterable[str]) -> None:
        self._wanted = frozenset(wanted)
        self._heads = frozenset(head for term in self._wanted for head in (term[:2], *_OTHER_HEADS.get(term, ())))

    def among(self, text: str) -> set[str]:
        heads = self._heads
        words = _WORD.findall(text.lower())
        found = {stem(word) for word in words if word[:2] in heads}
        if not text.isascii():
            found.update(term for word in words if not word.isascii() for term in _split(word))
        return found & self._wanted


def _split(word: str) -> list[str]:
    if not _CJK.search(word):
        return [stem(word)]
    parts: list[str] = []
    last = 0
    for run in _CJK.finditer(word):
        if run.start() > last:
            parts.append(stem(word[last : run.start()]))
        text = run[0]
        parts.extend([text] if len(text) == 1 else [text[i : i + 2] for i in range(len(text) - 1)])
        last = run.end()
    if last < len(word):
        parts.append(stem(word[last:]))
    return parts


FUNCTION_WORDS = frozenset(terms(_FUNCTION_WORDS))  # English words that carry no topic
