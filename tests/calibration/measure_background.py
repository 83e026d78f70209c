"""Measures general text for ranking: document frequencies of terms, and the common component of its embeddings by each of
the two models whose files we know.

Usage: measure_background.py FILE... (fortune files: items between lines of a single `%`)

Writes `background.msgpack` ({"docs", "df": {term: count}}, terms of at least DF_MIN documents), `common.f32` (256
little-endian floats) and `minilm/common.f32` (384; four minutes) into the package's data folder. The files shipped were
measured on the 14,973 items of 20 to 1,500 characters in Debian's `fortunes` 1:1.99.1-7.3 (14,983 for the last one): short
texts of many hands on many matters, as turns are.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np

import recalld
from recalld.core.words import terms
from recalld.edge.embed import Vectors, load_model, unit
from recalld.edge.onnx import OnnxEmbedder

DF_MIN = 3
ITEM_CHARS = (20, 1500)


def common(vectors: Vectors) -> bytes:
    return np.asarray(unit(vectors).mean(axis=0), dtype="<f4").tobytes()


def main(paths: list[str]) -> None:
    items = [
        item.strip()
        for path in sorted(paths)
        for item in re.split(r"\n%\n", Path(path).read_text(errors="replace"))
        if ITEM_CHARS[0] < len(item.strip()) < ITEM_CHARS[1]
    ]
    df = Counter(term for item in items for term in set(terms(item)))
    kept = {term: count for term, count in sorted(df.items()) if count >= DF_MIN}
    data = Path(recalld.__file__).parent / "data"
    (data / "background.msgpack").write_bytes(msgspec.msgpack.encode({"docs": len(items), "df": kept}))
    (data / "common.f32").write_bytes(common(load_model().embed(items)))
    (data / "minilm" / "common.f32").write_bytes(common(OnnxEmbedder().raw(items)))
    print(f"{len(items)} items, {len(kept)} terms")


if __name__ == "__main__":
    main(sys.argv[1:])
