"""What the memories of one namespace are scored by, where scoring needs it at once: a memory-mapped file made with the
vector snapshot, and a tail in memory of what is newer. Reading sixty rows of it takes no statement and no copy of a page.

Rows follow the memories' ids. The turns of a sitting are linked: a turn's neighbours say what it is about. A sitting is
named by the id of its first turn, 0 is none.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from recalld.core.features import NONE, NOTHING, Features, Numbers, Rows, same_sitting

_ALIGNED = 64

Places = npt.NDArray[np.intp]
_NO_NUMBERS: Numbers = np.empty(0, dtype="<u4")
_decode = msgspec.msgpack.Decoder(list[Features]).decode


class Entry(NamedTuple):
    """One memory. `session`: what `session_number` gives. `is_turn`: one of the session's turns. `features`: encoded.
    `vector` None: it is yet to be made."""

    id: int
    session: int
    is_turn: bool
    created_ms: int
    features: bytes
    vector: npt.NDArray[np.float16] | None


def session_number(session: str | None) -> int:
    """A session as 63 bits; 0 is none."""
    return (
        0 if session is None else int.from_bytes(blake2b(session.encode(), digest_size=8).digest(), "little") >> 1 or 1
    )


class _File:
    """The arrays of a features file, memory-mapped."""

    def __init__(self, path: Path) -> None:
        data = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
        size = int(data[:8].view("<u8")[0])
        index: dict[str, tuple[str, list[int], int]] = msgspec.json.decode(bytes(data[8 : 8 + size]))
        self._arrays = {}
        for name, (kind, shape, offset) in index.items():
            nbytes = int(np.dtype(kind).itemsize * np.prod(shape, dtype=np.int64))
            self._arrays[name] = data[offset : offset + nbytes].view(kind).reshape(shape)

    def __getattr__(self, name: str) -> Any:
        return self._arrays[name]

    def encoded(self, rows: Places) -> list[memoryview]:
        """The features of rows."""
        data = memoryview(self.blobs)
        return [data[a:b] for a, b in zip(self.offsets[rows].tolist(), self.offsets[rows + 1].tolist(), strict=True)]

    def said(self, sittings: npt.NDArray[np.int64]) -> list[Numbers]:
        """The distinct terms of sittings, none of one that is not here."""
        if not len(self.keys):
            return [_NO_NUMBERS] * len(sittings)
        places = np.minimum(np.searchsorted(self.keys, sittings), len(self.keys) - 1)
        starts, ends = self.word_starts[places].tolist(), self.word_starts[places + 1].tolist()
        known = (self.keys[places] == sittings).tolist()
        return [self.words[a:b] if k else _NO_NUMBERS for a, b, k in zip(starts, ends, known, strict=True)]

    def last_sitting(self, session: int) -> _Sitting | None:
        """The newest of a session, without its words."""
        place = _found(self.hosts, session)
        if place is None:
            return None
        key = int(self.last_keys[place])
        at = _found(self.keys, key)
        assert at is not None
        first, end = int(self.starts[at]), int(self.starts[at + 1])
        row = int(self.turns[end - 1])
        return _Sitting(key, end - first, row, int(self.created[row]))


def write_file(path: Path, entries: Iterable[Entry], dimensions: int) -> None:
    """Write the features of a namespace, in order of the ids. Each has a vector."""
    ids, sittings, created, offsets, blobs, vectors = [], [], [], [0], [], []
    turns: dict[int, list[int]] = {}
    newest: dict[int, int] = {}  # the last sitting of each session
    for row, entry in enumerate(entries):
        ids.append(entry.id)
        created.append(entry.created_ms)
        blobs.append(entry.features)
        offsets.append(offsets[-1] + len(entry.features))
        vectors.append(np.asarray(entry.vector, dtype="<f2").tobytes())
        sitting = newest.get(entry.session, 0)
        if entry.is_turn:
            rows = turns.get(sitting, [])
            if not rows or not same_sitting(len(rows), created[rows[-1]], entry.created_ms):
                sitting, rows = entry.id, []
                newest[entry.session], turns[sitting] = sitting, rows
            rows.append(row)
        sittings.append(sitting)
    before, after = np.full(len(ids), NONE, dtype="<i4"), np.full(len(ids), NONE, dtype="<i4")
    keys = sorted(turns)
    starts, words, word_starts = [0], [], [0]
    for key in keys:
        rows = turns[key]
        before[rows[1:]], after[rows[:-1]] = rows[:-1], rows[1:]
        starts.append(starts[-1] + len(rows))
        said = np.unique(np.concatenate([_numbers_in(blobs[row]) for row in rows]))
        words.append(said)
        word_starts.append(word_starts[-1] + len(said))
    _write_arrays(
        path,
        {
            "ids": np.array(ids, dtype="<i8"),
            "sittings": np.array(sittings, dtype="<i8"),
            "created": np.array(created, dtype="<i8"),
            "before": before,
            "after": after,
            "offsets": np.array(offsets, dtype="<i8"),
            "blobs": np.frombuffer(b"".join(blobs), dtype="u1"),
            "vectors": np.frombuffer(b"".join(vectors), dtype="<f2").reshape(-1, dimensions),
            "hosts": np.array(sorted(newest), dtype="<i8"),
            "last_keys": np.array([newest[host] for host in sorted(newest)], dtype="<i8"),
            "keys": np.array(keys, dtype="<i8"),
            "starts": np.array(starts, dtype="<i8"),
            "turns": np.array([row for key in keys for row in turns[key]], dtype="<i4"),
            "word_starts": np.array(word_starts, dtype="<i8"),
            "words": np.concatenate([*words, np.empty(0, dtype="<u4")]),
        },
    )


def _numbers_in(blob: bytes) -> Numbers:
    return np.frombuffer(_one(blob).numbers, dtype="<u4")


_one = msgspec.msgpack.Decoder(Features).decode


def _write_arrays(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Length of the index (8 bytes), the index as JSON, then each array at an aligned offset."""
    index: dict[str, Any] = {name: (a.dtype.str, a.shape, 0) for name, a in arrays.items()}
    offset = 8 + len(msgspec.json.encode(index)) + 24 * len(arrays)  # room for the offsets' digits
    for name, a in arrays.items():
        offset = -(-offset // _ALIGNED) * _ALIGNED
        index[name] = (a.dtype.str, a.shape, offset)
        offset += a.nbytes
    head = msgspec.json.encode(index)
    with path.open("wb") as f:
        f.write(len(head).to_bytes(8, "little") + head)
        for name, a in arrays.items():
            f.seek(index[name][2])
            f.write(np.ascontiguousarray(a).tobytes())
        f.truncate(max(offset, 1))


class _Sitting:
    """A sitting that the tail has turns of: how many turns it has in all, the last one's row and time, and what the tail's
    rows say, each term once."""

    def __init__(self, key: int, turns: int = 0, last: int = NONE, last_ms: int = 0) -> None:
        self.key = key
        self.turns = turns
        self.last = last
        self.last_ms = last_ms
        self.rows: list[int] = []
        self._seen: set[int] = set()
        self._said: Numbers = np.empty(64, dtype="<u4")
        self._count = 0

    def say(self, numbers: Numbers) -> None:
        new = [number for number in numbers.tolist() if number not in self._seen]
        self._seen.update(new)
        end = self._count + len(new)
        if end > len(self._said):
            self._said = np.concatenate([self._said, np.empty(max(end, len(self._said)), dtype="<u4")])
        self._said[self._count : end] = new
        self._count = end

    @property
    def said(self) -> Numbers:
        """From any thread: the count never runs ahead of the array."""
        count = self._count
        return self._said[:count]

    def unsay(self, kept: Iterable[Numbers]) -> None:
        """Say it all again, without what was removed."""
        fresh = _Sitting(self.key)
        for numbers in kept:
            fresh.say(numbers)
        self._count = 0
        self._seen, self._said = fresh._seen, fresh._said
        self._count = fresh._count


class _Held:
    """One file and the tail above it: what a reader sees is of one piece. A row of the tail has a number above the file's."""

    def __init__(self, file: _File | None, dimensions: int) -> None:
        self.file = file
        self.dimensions = dimensions
        self.base = 0 if file is None else len(file.ids)
        self.tail: list[Entry] = []
        self.row_of: dict[int, int] = {}  # of the tail, by id
        self.before: list[int] = []  # of the tail
        self.after: dict[int, int] = {}  # of any row that the tail follows
        self.open: dict[int, _Sitting] = {}  # the newest of each session that the tail has turns of
        self.sittings: dict[int, _Sitting] = {}  # all that the tail has turns of
        self.sitting_of: list[int] = []  # of the tail
        self.removed: set[int] = set()  # rows

    def set_vector(self, memory_id: int, vector: npt.NDArray[np.float16]) -> None:
        """Of a memory of the tail: a file is made of what has one."""
        if (row := self.row_of.get(memory_id)) is not None:
            self.dimensions = self.dimensions or len(vector)
            self.tail[row - self.base] = self.tail[row - self.base]._replace(vector=vector)

    def add(self, entry: Entry) -> None:
        if not self.dimensions and entry.vector is not None:
            self.dimensions = len(entry.vector)
        row, last = self.base + len(self.tail), NONE
        sitting = self.open.get(entry.session)
        if sitting is None and entry.session and self.file is not None:
            sitting = self.file.last_sitting(entry.session)
        if entry.is_turn:
            if sitting is None or not same_sitting(sitting.turns, sitting.last_ms, entry.created_ms):
                sitting = _Sitting(entry.id)
            last = sitting.last
            if last != NONE:
                self.after[last] = row
            sitting.turns, sitting.last, sitting.last_ms = sitting.turns + 1, row, entry.created_ms
            sitting.rows.append(row)
            sitting.say(_numbers_in(entry.features))
            self.open[entry.session] = self.sittings[sitting.key] = sitting
        self.before.append(last)
        self.sitting_of.append(sitting.key if sitting else 0)
        self.tail.append(entry)
        self.row_of[entry.id] = row

    def remove(self, memory_id: int) -> None:
        row = self.row_of.get(memory_id)
        if row is None and self.file is not None:
            row = _found(self.file.ids, memory_id)
        if row is None:
            return
        self.removed.add(row)
        if row >= self.base and self.tail[row - self.base].is_turn:
            sitting = self.sittings[self.sitting_of[row - self.base]]
            sitting.rows.remove(row)
            sitting.unsay(_numbers_in(self.tail[kept - self.base].features) for kept in sitting.rows)

    def newer(self, memory_id: int) -> Iterator[Entry]:
        """What the tail holds above an id."""
        for row, entry in enumerate(self.tail, self.base):
            if entry.id > memory_id and row not in self.removed:
                yield entry

    def removed_ids(self) -> list[int]:
        return [self._id(row) for row in self.removed]

    def _id(self, row: int) -> int:
        if self.file is not None and row < self.base:
            return int(self.file.ids[row])
        return self.tail[row - self.base].id

    # -- reading

    def read(self, ids: Iterable[int]) -> Rows:
        found = np.unique(self._rows(ids))
        beside = (self._links(found, -1), self._links(found, 1))
        asked = np.unique(np.concatenate([found, *(rows[rows != NONE] for rows in beside)]))
        before, after = self._links(asked, -1), self._links(asked, 1)
        others = np.setdiff1d(np.concatenate([before, after]), asked)
        rows = np.concatenate([asked, others[others != NONE]])
        order = np.argsort(rows)

        def place(linked: Places) -> Places:
            return np.where(
                linked == NONE, NONE, order[np.searchsorted(rows, linked, sorter=order) % max(len(rows), 1)]
            )

        return self._gather(rows, len(asked), place(before), place(after)) if len(rows) else NOTHING

    def _rows(self, ids: Iterable[int]) -> Places:
        wanted = list(ids)
        rows = [row for memory_id in wanted if (row := self.row_of.get(memory_id)) is not None]
        if self.file is not None and self.base and len(rows) < len(wanted):
            sought = np.array(wanted, dtype=np.int64)
            places = np.minimum(np.searchsorted(self.file.ids, sought), self.base - 1)
            rows += places[self.file.ids[places] == sought].tolist()
        return np.array([row for row in rows if row not in self.removed], dtype=np.intp)

    def _links(self, rows: Places, step: int) -> Places:
        """The neighbour before (-1) or after (1) of each row; one that was removed is stepped over."""
        linked = np.full(len(rows), NONE, dtype=np.intp)
        old = rows < self.base
        if self.file is not None and old.any():
            linked[old] = (self.file.before if step < 0 else self.file.after)[rows[old]]
        if self.tail:
            for n in np.flatnonzero(~old if step < 0 else linked == NONE).tolist():
                row = int(rows[n])
                linked[n] = self.before[row - self.base] if step < 0 else self.after.get(row, NONE)
        if self.removed:
            gone = [n for n, row in enumerate(linked.tolist()) if row in self.removed]
            if gone:
                linked[gone] = self._links(linked[gone], step)
        return linked

    def _gather(self, rows: Places, asked: int, before: Places, after: Places) -> Rows:
        old = rows < self.base
        blobs, sittings = [], np.zeros(len(rows), dtype=np.int64)
        ids, created = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
        vectors = np.zeros((len(rows), self.dimensions), dtype=np.float32)
        if self.file is not None and old.any():
            at = rows[old]
            blobs = self.file.encoded(at)
            ids[old], sittings[old], created[old] = self.file.ids[at], self.file.sittings[at], self.file.created[at]
            vectors[old] = self.file.vectors[at]
        if not old.all():
            encoded = iter(blobs)
            entries = [None if row < self.base else self.tail[row - self.base] for row in rows.tolist()]
            blobs = [next(encoded) if entry is None else entry.features for entry in entries]
            for n, entry in enumerate(entries):
                if entry is not None:
                    sitting = self.sitting_of[int(rows[n]) - self.base]
                    ids[n], sittings[n], created[n] = entry.id, sitting, entry.created_ms
                    if entry.vector is not None:
                        vectors[n] = entry.vector
        found = _decode(b"\xdd" + len(blobs).to_bytes(4, "big") + b"".join(blobs))
        counts = np.frombuffer(b"".join([f.counts for f in found]), dtype="<u2")
        passages = np.array([len(f.speakers) for f in found])
        told, place = np.unique(sittings[:asked], return_inverse=True)
        return Rows(
            ids=ids[:asked].tolist(),
            created_ms=created[:asked],
            before=before,
            after=after,
            vectors=vectors,
            flags=np.array([f.flags for f in found[:asked]], dtype=np.int64),
            names=[f.names for f in found[:asked]],
            starts=np.cumsum(passages) - passages,
            owner=np.repeat(np.arange(len(found)), passages),
            speaker=np.frombuffer(b"".join([f.speakers for f in found]), dtype=np.uint8),
            numbers=np.frombuffer(b"".join([f.numbers for f in found]), dtype="<u4"),
            passage=np.repeat(np.arange(len(counts)), counts),
            session=place,
            session_numbers=self._said(told),
        )

    def _said(self, keys: npt.NDArray[np.int64]) -> list[Numbers]:
        """The terms of each sitting, some of them twice; none of no sitting."""
        said = [_NO_NUMBERS] * len(keys) if self.file is None else self.file.said(keys)
        for n, key in enumerate(keys.tolist() if self.sittings else ()):
            if (sitting := self.sittings.get(key)) is not None:
                said[n] = np.concatenate([said[n], sitting.said]) if len(said[n]) else sitting.said
        return said


def _found(ordered: Any, value: int) -> int | None:
    place = int(ordered.searchsorted(value))
    return place if place < len(ordered) and ordered[place] == value else None


class FeatureIndex:
    """`read` from any thread; what changes it takes turns. A vector that is yet to be made is read as zeros; `dimensions`
    0: that of the first one."""

    def __init__(self, dimensions: int = 0) -> None:
        self._lock = threading.Lock()
        self._held = _Held(None, dimensions)

    def add(self, entries: Iterable[Entry]) -> None:
        """Ids are greater than any before."""
        with self._lock:
            for entry in entries:
                self._held.add(entry)

    def set_vector(self, memory_id: int, vector: npt.NDArray[np.float32]) -> None:
        """Of a memory that was added without."""
        with self._lock:
            self._held.set_vector(memory_id, vector.astype(np.float16))

    def remove(self, ids: Iterable[int]) -> None:
        """They are nobody's neighbours from now on, and say nothing of their sitting; those of the file once it is made anew."""
        with self._lock:
            for memory_id in ids:
                self._held.remove(memory_id)

    def newer(self, memory_id: int) -> list[Entry]:
        """What was added above an id and not removed."""
        with self._lock:
            return list(self._held.newer(memory_id))

    def take(self, path: Path) -> None:
        """Use a file, with what is newer and was added here. Raises ValueError or OSError if it cannot be read."""
        file = _File(path)
        last = int(file.ids[-1]) if len(file.ids) else 0
        with self._lock:
            held = _Held(file, file.vectors.shape[1])
            for entry in self._held.newer(last):
                held.add(entry)
            for memory_id in self._held.removed_ids():  # while the file was made
                held.remove(memory_id)
            self._held = held

    def read(self, ids: Iterable[int]) -> Rows:
        """Those of these memories that are there and their neighbours, to be scored; and what their neighbours are."""
        return self._held.read(ids)


def ids_and_vectors(entries: Sequence[Entry]) -> tuple[list[int], npt.NDArray[np.float32]]:
    """Shapes (n,) and (n, d): those that have a vector which is like something."""
    held = [(e.id, e.vector) for e in entries if e.vector is not None and e.vector.any()]
    if not held:
        return [], np.empty((0, 0), dtype=np.float32)
    return [memory_id for memory_id, _ in held], np.stack([vector for _, vector in held]).astype(np.float32)
