"""Brings a word index up to the record; and makes one anew in a process of its own, because handing a million memories
over takes the interpreter's lock for as long.

Usage: python -m recalld.edge.rebuild DATABASE NAMESPACE MODEL_ID FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from recalld.edge.lexical import LexicalIndex, LexicalState
from recalld.edge.reader import Reader
from recalld.edge.snapshot import NICE

ROWS = 20_000  # read, indexed and committed at a time


def catch_up(words: LexicalIndex, namespace: str, reader: Reader) -> None:
    """Take in what the record has and the index has not. Raises OSError, ValueError or StorageError."""
    state = words.state
    removed = reader.tombstones(namespace, state.tombstone_id)
    tombstone_id = removed[-1][0] if removed else state.tombstone_id
    memory_id, gone = state.memory_id, [m for _, m in removed]
    while True:
        rows = reader.terms(namespace, memory_id, ROWS)
        if not rows and not gone:
            return
        memory_id = rows[-1][0] if rows else memory_id
        words.apply(rows, gone, LexicalState(memory_id, tombstone_id))
        gone = []


def build(database: Path, namespace: str, model_id: int, folder: Path) -> None:
    """Write the index of a namespace to a folder that is not there."""
    reader = Reader(database, model_id)
    words = LexicalIndex(folder)
    catch_up(words, namespace, reader)
    words.close()
    reader.close()


if __name__ == "__main__":
    os.nice(NICE)
    build(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
