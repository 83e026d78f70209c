"""What a memory is scored by, beside its vector: worked out once, when it is stored.

A text is cut into passages: a few lines of one speaker. A turn of a dozen lines is then judged by the lines that answer,
not by their average.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from recalld.core.words import terms

PASSAGE_CHARS = 300
WHOLE_CHARS = 600  # a turn up to this length is one memory; a longer one is cut into parts
PART_CHARS = 400
SITTING_TURNS = 64  # a session may go on for years: what is told in one sitting belongs together
SITTING_GAP_MS = 6 * 3_600_000
USER, ANSWERER, NOBODY = 0, 1, 2  # who says a passage
SAYS_WHEN = 1  # a flag: the text names a time

_SAYS_WHEN = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|last|next|ago|since|recently|morning|weekend|week|month|year"
    r"|(?:mon|tues|wednes|thurs|fri|satur|sun)day|january|february|march|april|june|july|august|september|october"
    r"|november|december)\b",
    re.IGNORECASE,
)

NONE = -1  # no row

Numbers = npt.NDArray[np.uint32]


class Passage(Struct, frozen=True):
    speaker: int
    text: str


class Features(Struct, array_like=True, frozen=True):
    """`names`: one array of term numbers for each speaker. Passages: `speakers` (uint8) and `counts` (uint16) of each, and
    `numbers` (uint32), the distinct terms of one after the other. All little-endian."""

    flags: int
    names: tuple[bytes, bytes]
    speakers: bytes
    counts: bytes
    numbers: bytes


class Rows(NamedTuple):
    """What was read of memories that are to be scored, and of their neighbours.

    Of the first: `ids`, `created_ms`, `flags`, `names`, `before` and `after` (the row of the neighbour in the sitting, or
    NONE) and `session` (the place of its sitting in `session_numbers`). Of all rows, the first come first: `vectors`, and
    `starts`, their first passage; each has one. Passages: `owner` (their row), `speaker`; `numbers`, the terms of all of
    them, and the `passage` of each.
    """

    ids: list[int]
    created_ms: npt.NDArray[np.int64]
    before: npt.NDArray[np.intp]
    after: npt.NDArray[np.intp]
    vectors: npt.NDArray[np.float32]
    flags: npt.NDArray[np.int64]
    names: list[tuple[bytes, bytes]]
    starts: npt.NDArray[np.intp]
    owner: npt.NDArray[np.intp]
    speaker: npt.NDArray[np.uint8]
    numbers: Numbers
    passage: npt.NDArray[np.intp]
    session: npt.NDArray[np.intp]
    session_numbers: list[Numbers]


_NO_PLACES = np.empty(0, dtype=np.intp)
_NO_TIMES = np.empty(0, dtype=np.int64)
_NO_BYTES = np.empty(0, dtype=np.uint8)
_NO_NUMBERS = np.empty(0, dtype=np.uint32)
NOTHING = Rows(
    ids=[],
    created_ms=_NO_TIMES,
    before=_NO_PLACES,
    after=_NO_PLACES,
    vectors=np.empty((0, 0), dtype=np.float32),
    flags=_NO_TIMES,
    names=[],
    starts=_NO_PLACES,
    owner=_NO_PLACES,
    speaker=_NO_BYTES,
    numbers=_NO_NUMBERS,
    passage=_NO_PLACES,
    session=_NO_PLACES,
    session_numbers=[],
)


encode = msgspec.msgpack.Encoder().encode


def number_of(term: str) -> int:
    """A term as a number (CRC-32). Two terms with one number (1 in 4 billion) are taken for one."""
    return zlib.crc32(term.encode())


def numbers_of(found: Iterable[str]) -> Numbers:
    """The distinct terms as numbers, in order of appearance."""
    return np.array([number_of(term) for term in dict.fromkeys(found)], dtype="<u4")


def features_of(text: str, speaker: str | None, answerer: str | None) -> Features:
    """Of a memory's text. A turn's text is `speaker: …`, then `answerer: …`; a fact's is `speaker: …`."""
    parts = passages(text, speaker, answerer)
    numbers = [numbers_of(terms(part.text)) for part in parts]
    names = [numbers_of(terms(name or "")).tobytes() for name in (speaker, answerer)]
    return Features(
        flags=SAYS_WHEN if _SAYS_WHEN.search(text) else 0,
        names=(names[0], names[1]),
        speakers=bytes(part.speaker for part in parts),
        counts=np.array([len(n) for n in numbers], dtype="<u2").tobytes(),
        numbers=b"".join(n.tobytes() for n in numbers),
    )


def cut(said: Sequence[tuple[str, str]]) -> list[str]:
    """What was said, as (name, text) in order, as the text of one memory, or of several where it is long: parts of about
    PART_CHARS that end where a line or a sentence does, each with the name of who speaks."""
    whole = "\n".join(f"{name}: {text}" for name, text in said if text)
    if len(whole) <= WHOLE_CHARS:
        return [whole]
    pieces = [(name, piece.strip()) for name, text in said for line in text.splitlines() for piece in _pieces(line)]
    chars = sum(len(piece) for _, piece in pieces)
    size = chars / -(-chars // PART_CHARS)
    parts: list[str] = []
    packed, speaking = "", ""
    for name, piece in pieces:
        if packed and len(packed) + len(piece) / 2 > size:
            parts.append(packed)
            packed, speaking = "", ""
        told = piece if speaking == name else f"{name}: {piece}"
        packed, speaking = (f"{packed}\n{told}" if packed else told), name
    return [*parts, packed]


def same_sitting(turns: int, last_ms: int, created_ms: int) -> bool:
    """Whether a turn of a session belongs to the sitting that had so many turns, the last one then."""
    return turns < SITTING_TURNS and created_ms - last_ms <= SITTING_GAP_MS


def passages(text: str, speaker: str | None, answerer: str | None) -> list[Passage]:
    """Lines of one speaker put together up to PASSAGE_CHARS; a longer line is cut at its sentences. At least one."""
    parts: list[Passage] = []
    saying, packed = NOBODY, ""
    for line in text.splitlines():
        for who, name in ((USER, speaker), (ANSWERER, answerer)):
            if name and line.startswith(f"{name}: ") and saying != who and not (who == USER and saying == ANSWERER):
                parts += _passage(saying, packed)
                saying, packed, line = who, "", line[len(name) + 2 :]
                break
        for piece in _pieces(line):
            if packed and len(packed) + len(piece) > PASSAGE_CHARS:
                parts += _passage(saying, packed)
                packed = ""
            packed = f"{packed}\n{piece}" if packed else piece
    parts += _passage(saying, packed)
    return parts or [Passage(NOBODY, "")]


def _passage(saying: int, packed: str) -> Sequence[Passage]:
    return [Passage(saying, packed)] if packed.strip() else []


def _pieces(line: str) -> list[str]:
    pieces = [line] if len(line) <= PASSAGE_CHARS else re.split(r"(?<=[.!?。！？])\s*", line)
    return [piece for piece in pieces if piece.strip()]
