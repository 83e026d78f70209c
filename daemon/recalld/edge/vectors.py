"""The vector index of one namespace: an immutable HNSW snapshot (usearch), and an exact tail of what is newer.

Snapshots are made by a process of their own (`snapshot.py`) and viewed here, memory-mapped: nothing is ever added to a
graph in this process, whose exclusive lock would hold searches up. The tail is scanned exactly: 0.06 ms for 4,096 vectors.
What either finds are candidates; they are scored with the stored vectors.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import numkong
import numpy as np
import numpy.typing as npt
from msgspec import Struct
from usearch.index import Index

from recalld.edge.embed import Vectors
from recalld.edge.files import checksum

BLOCK = 4_096
VERSION = 3  # of a snapshot's files
_SCALE = 508.0  # int8 of a unit vector's components: measured within +-0.25 for static embeddings, so +-127
EXPANSION = 128  # ef of the search; recall@10 .98 on real text at 100 thousand, 0.9 ms

Ids = npt.NDArray[np.int64]


class SnapshotHeader(Struct):
    """What a snapshot file holds. It is written after the file, as a whole: a snapshot without it does not exist."""

    file: str
    checksum: str
    features_checksum: str
    identity: str
    count: int
    memory_id: int
    tombstone_id: int
    dimensions: int
    version: int = VERSION


class Snapshot:
    """An HNSW graph in a file. Raises ValueError or OSError if it is missing, damaged, or of another model.

    Making one only checks it, which leaves other threads alone; `open` holds the interpreter's lock for about 5 ms for
    each 100 thousand vectors, so it is called where no prompt waits.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self.header = read_header(folder)
        self._path = folder / self.header.file
        if self.header.version != VERSION:
            raise ValueError(f"{self._path} was written in another form")
        if self.header.identity != identity:
            raise ValueError(f"{self._path} holds vectors of {self.header.identity}")
        self.features_path = self._path.with_suffix(".features")
        for path, expected in (
            (self._path, self.header.checksum),  # usearch itself loads a damaged body without a word
            (self.features_path, self.header.features_checksum),
        ):
            if checksum(path) != expected:
                raise ValueError(f"{path} does not match its checksum")
        self._index: Any = None

    def open(self) -> None:
        index: Any = Index.restore(str(self._path), view=True, enable_key_lookups=False)
        if index is None or index.ndim != self.header.dimensions:
            raise ValueError(f"{self._path} is not a vector index of {self.header.dimensions} dimensions")
        index.expansion_search = EXPANSION
        self._index = index

    def search(self, vector: Vectors, limit: int) -> tuple[Ids, Vectors]:
        found = self._index.search(vector, limit, threads=1)
        return found.keys.astype(np.int64), (1.0 - found.distances).astype(np.float32)


def read_header(folder: Path) -> SnapshotHeader:
    """Raises ValueError or OSError."""
    try:
        return msgspec.json.decode((folder / "snapshot.json").read_bytes(), type=SnapshotHeader)
    except msgspec.MsgspecError as e:
        raise ValueError(f"{folder / 'snapshot.json'}: {e}") from None


class Tail:
    """Vectors newer than the snapshot: full blocks packed as int8, the last one as float32. Grows; never shrinks.

    The first vectors decide how many dimensions all have.
    """

    def __init__(self) -> None:
        self._blocks: list[tuple[Ids, Any]] = []
        self._ids: Ids = np.empty(BLOCK, dtype=np.int64)
        self._vectors: Vectors = np.empty((0, 0), dtype=np.float32)
        self._open: tuple[Ids, Vectors] = (self._ids[:0], self._vectors[:0])

    def __len__(self) -> int:
        return len(self._blocks) * BLOCK + len(self._open[0])

    def add(self, ids: list[int], vectors: Vectors) -> None:
        """Raises ValueError for vectors of other dimensions than those it has."""
        if not ids:
            return
        dimensions = vectors.shape[1]
        if not self._vectors.size:
            self._vectors = np.empty((BLOCK, dimensions), dtype=np.float32)
            self._open = (self._ids[:0], self._vectors[:0])
        if dimensions != self._vectors.shape[1]:
            raise ValueError(f"vectors of {dimensions} dimensions do not go among those of {self._vectors.shape[1]}")
        done = 0
        while done < len(ids):
            n = len(self._open[0])
            take = min(BLOCK - n, len(ids) - done)
            self._ids[n : n + take] = ids[done : done + take]
            self._vectors[n : n + take] = vectors[done : done + take]
            done += take
            if n + take == BLOCK:
                block = (self._ids, numkong.dots_pack(_quantised(self._vectors)))
                self._ids = np.empty(BLOCK, dtype=np.int64)
                self._vectors = np.empty((BLOCK, dimensions), dtype=np.float32)
                self._blocks.append(block)
                self._open = (self._ids[:0], self._vectors[:0])
            else:
                self._open = (self._ids[: n + take], self._vectors[: n + take])

    def search(self, vector: Vectors, limit: int) -> tuple[Ids, Vectors]:
        ids, vectors = self._open
        if not vectors.shape[1]:
            return ids, np.empty(0, dtype=np.float32)
        parts = [(ids, vectors @ vector)]
        if self._blocks:
            quantised = _quantised(vector[None, :])
            for block_ids, packed in list(self._blocks):
                dots = np.asarray(numkong.dots_packed(quantised, packed))[0]
                parts.append((block_ids, dots.astype(np.float32) / np.float32(_SCALE * _SCALE)))
        return _best([_best([part], limit) for part in parts], limit)


def _quantised(vectors: Vectors) -> npt.NDArray[np.int8]:
    quantised: npt.NDArray[np.int8] = np.clip(np.rint(vectors * _SCALE), -127, 127).astype(np.int8)
    return quantised


def _best(parts: list[tuple[Ids, Vectors]], limit: int) -> tuple[Ids, Vectors]:
    ids = np.concatenate([p[0] for p in parts])
    scores = np.concatenate([p[1] for p in parts])
    if len(ids) > limit:
        keep = np.argpartition(scores, -limit)[-limit:]
        ids, scores = ids[keep], scores[keep]
    order = np.argsort(-scores)
    return ids[order], scores[order]


class VectorIndex:
    """One namespace's vectors. `search` and `add` from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # between adding and taking a snapshot in; searching needs none
        self._since: list[tuple[int, Vectors]] | None = None
        self.snapshot: Snapshot | None = None
        self.tail = Tail()

    def __len__(self) -> int:
        return len(self.tail) + (self.snapshot.header.count if self.snapshot else 0)

    def add(self, ids: list[int], vectors: Vectors) -> None:
        """Shapes (n,) and (n, dimensions); in any order. Raises ValueError for other dimensions than the ones before."""
        with self._lock:
            self.tail.add(ids, vectors)
            if self._since is not None:
                self._since.extend(zip(ids, vectors, strict=True))

    def begin_take(self) -> None:
        """From now on remember what is added, for `take`: its caller is about to read the record."""
        with self._lock:
            self._since = []

    def take(self, snapshot: Snapshot, ids: list[int], vectors: Vectors) -> None:
        """Use an opened snapshot, with a tail of what the record had above it and of what came since `begin_take`."""
        tail = Tail()
        tail.add(ids, vectors)
        known = set(ids)
        with self._lock:
            for memory_id, vector in self._since or []:
                if memory_id not in known:
                    tail.add([memory_id], vector[None, :])
            self._since = None
            self.snapshot, self.tail = snapshot, tail

    def search(self, vector: Vectors, limit: int) -> list[int]:
        """Candidates: the ids of about the `limit` nearest memories, nearest first. Removed ones may be among them."""
        parts = [self.tail.search(vector, limit)]
        snapshot = self.snapshot
        if snapshot is not None:
            parts.append(snapshot.search(vector, limit))
        found: list[int] = _best(parts, limit)[0].tolist()
        return list(dict.fromkeys(found))
