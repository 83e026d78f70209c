"""Text to index terms: one analyser for storing, for searching and for scoring."""

from __future__ import annotations

import re
from functools import lru_cache

import Stemmer

ANALYSER = "terms-1"  # changes whenever `terms` would give something else; stored terms are then made anew

# Words of letters and digits; ideographs and kana, which are written without spaces, become overlapping pairs.
_WORD = re.compile(r"[^\W_]+")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]+")
_POSSESSIVE = re.compile(r"['’](?:s|re|ve|ll|d|m|t)\b")
_TERM_CHARS_MAX = 64  # longer ones are keys and blobs, which nobody asks for by word
_stemmer = Stemmer.Stemmer("english")


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    stem: str = _stemmer.stemWord(word)
    return stem


def terms(text: str) -> list[str]:
    """The stemmed, lower-cased terms of a text, in order, with repetitions."""
    found: list[str] = []
    for word in _WORD.findall(_POSSESSIVE.sub("", text.lower())):
        if len(word) > _TERM_CHARS_MAX:
            continue
        if word.isascii():
            found.append(_stem(word))
        else:
            found.extend(_split(word))
    return found


def _split(word: str) -> list[str]:
    if not _CJK.search(word):
        return [_stem(word)]
    parts: list[str] = []
    last = 0
    for run in _CJK.finditer(word):
        if run.start() > last:
            parts.append(_stem(word[last : run.start()]))
        text = run[0]
        parts.extend([text] if len(text) == 1 else [text[i : i + 2] for i in range(len(text) - 1)])
        last = run.end()
    if last < len(word):
        parts.append(_stem(word[last:]))
    return parts
