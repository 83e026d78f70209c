"""The static embedding: wordllama, 256 dimensions, weights from the installed wheel. Never downloads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from recalld.core.rank import Background

os.environ.setdefault(
    "TOKENIZERS_PARALLELISM", "false"
)  # one text at a time: a thread pool would only compete for cores

DIMENSIONS = 256
TEXT_CHARS_MAX = 4_096  # 9 ms for 2,000 words; what follows hardly moves an average of token vectors
_DATA = Path(__file__).parent.parent / "data"

Vector = npt.NDArray[np.float32]
Vectors = npt.NDArray[np.float32]


def load_model() -> Any:
    """wordllama's own model object. Its loader looks for the tokenizer in the wrong folder of its own package; with
    `cache_dir` at the package it finds both files."""
    import wordllama

    folder = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder, dim=DIMENSIONS, disable_download=True)


def load_background() -> Background:
    """Document frequencies of general text (tests/calibration/measure_background.py)."""
    table = msgspec.msgpack.decode((_DATA / "background.msgpack").read_bytes())
    docs = table["docs"]
    return Background(share={term: count / docs for term, count in table["df"].items()}, rare=0.5 / docs)


class Embedder:
    """Texts to unit vectors, shape (n, 256), float32. `identity` names the model and every setting that moves a vector."""

    def __init__(self) -> None:
        from importlib.metadata import version

        self._model = load_model()
        # It keeps what became of the last 10,000 texts of under 256 bytes, 45 to 65 MiB, and none comes twice.
        self._model.tokenizer.model._resize_cache(0)
        self._common = np.frombuffer((_DATA / "common.f32").read_bytes(), dtype="<f4")
        self.identity = f"wordllama-{version('wordllama')}/l2_supercat_{DIMENSIONS}/common-1"

    def embed(self, texts: list[str]) -> Vectors:
        """Unit vectors with the common component removed."""
        raw: Vectors = self._model.embed([text[:TEXT_CHARS_MAX] or " " for text in texts])
        return self._unit(self._unit(raw) - self._common)

    @staticmethod
    def _unit(vectors: Vectors) -> Vectors:
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.maximum(norms, 1e-9), dtype=np.float32)
