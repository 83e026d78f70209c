"""Makes the HNSW snapshot of one namespace, in a process of its own: building is minutes of processor time, and saving
and loading hold the interpreter's lock. Continues from the last snapshot where there is a good one.

Usage: python -m recalld.edge.snapshot DATABASE NAMESPACE IDENTITY FOLDER THREADS [anew]
"""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from usearch.index import Index

from recalld.edge.features import ids_and_vectors, write_file
from recalld.edge.files import checksum, sync_folder, write_atomic
from recalld.edge.reader import Reader
from recalld.edge.vectors import VERSION, SnapshotHeader, read_header

NICE = 10  # recall and capture go first


def build(
    database: Path, namespace: str, identity: str, folder: Path, threads: int, *, anew: bool = False
) -> SnapshotHeader:
    """Write the next snapshot and its header; remove the one before. Returns the header. `anew`: from the record alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        model_id = db.execute("SELECT id FROM models WHERE identity = ?", (identity,)).fetchone()[0]
        tombstone_id = db.execute(
            "SELECT coalesce(max(id), 0) FROM tombstones WHERE namespace = ?", (namespace,)
        ).fetchone()[0]
    db.close()
    reader = Reader(database, model_id)
    index, last = _last(folder, identity)
    number = int(last.file.split(".")[0]) + 1 if last else 1
    index, header = (None, None) if anew else (index, last)
    for _, memory_id in reader.tombstones(namespace, header.tombstone_id if header else 0):
        if index is not None and memory_id in index:
            index.remove(memory_id)
    end = reader.first_without_vector(namespace)  # what gets its vector later is above what this one says it follows
    newer = [e for e in reader.entries(namespace, header.memory_id if header else 0) if end is None or e.id < end]
    ids, vectors = ids_and_vectors(newer)
    if index is None:
        if not ids:
            raise ValueError(f"{namespace} has no vectors to make an index of")
        index = Index(ndim=vectors.shape[1], metric="cos", dtype="bf16", connectivity=16, expansion_add=128)
    if ids:
        index.add(np.array(ids, dtype=np.uint64), vectors, threads=threads)
    path = folder / f"{number}.usearch"
    index.save(str(path))
    highest = ids[-1] if ids else (header.memory_id if header else 0)
    features = folder / f"{number}.features"
    write_file(features, (e for e in reader.entries(namespace, 0) if e.id <= highest), index.ndim)
    reader.close()
    for written in (path, features):
        with written.open("rb") as f:
            os.fsync(f.fileno())
    sync_folder(folder)
    new = SnapshotHeader(
        file=path.name,
        checksum=checksum(path),
        features_checksum=checksum(features),
        identity=identity,
        count=len(index),
        memory_id=highest,
        tombstone_id=tombstone_id,
        dimensions=index.ndim,
    )
    write_atomic(folder / "snapshot.json", msgspec.json.encode(new))
    for old in (*folder.glob("*.usearch"), *folder.glob("*.features")):  # who still views one keeps its mapping
        if old not in (path, features):
            old.unlink()
    return new


def _last(folder: Path, identity: str) -> tuple[Any, SnapshotHeader | None]:
    try:
        header = read_header(folder)
        path = folder / header.file
        if header.version == VERSION and header.identity == identity and checksum(path) == header.checksum:
            index = Index.restore(str(path), view=False)
            if index is not None:
                return index, header
    except (OSError, ValueError):
        pass  # missing or damaged: from the record
    return None, None


if __name__ == "__main__":
    os.nice(NICE)
    build(
        Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]), int(sys.argv[5]), anew=sys.argv[6:] == ["anew"]
    )
