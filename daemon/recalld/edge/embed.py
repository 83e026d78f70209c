"""The contract of embedders, and the one that is always there: wordllama, static, its weights in its wheel.

Another one is chosen by `embedder.kind` (`embedders.py`). None downloads anything.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import numpy.typing as npt

from recalld.core.rank import Background

os.environ.setdefault(
    "TOKENIZERS_PARALLELISM", "false"
)  # one text at a time: a thread pool would only compete for cores

DIMENSIONS = 256  # of the static embedding
TEXT_CHARS_MAX = 4_096  # 9 ms for 2,000 words; what follows hardly moves an average of token vectors
DATA = Path(__file__).parent.parent / "data"

Vector = npt.NDArray[np.float32]
Vectors = npt.NDArray[np.float32]


class Embedder(ABC):
    """Texts to unit vectors, shape (n, dimensions), float32. `identity` names the model and every setting that moves a
    vector; `dimensions` is 0 as long as only a server knows it.

    `later`: embedding takes so long that memories are stored first and get their vectors afterwards.
    `remote`: it waits for another process, so questions are asked from threads of their own.
    """

    identity: str
    dimensions: int
    later: ClassVar[bool] = False
    remote: ClassVar[bool] = False

    @abstractmethod
    def embed(self, texts: list[str]) -> Vectors:
        """Blocking; from any thread. A text that the model refuses has the zero vector, which is like nothing.

        Raises EmbedderError where the model cannot be asked."""

    def embed_query(self, text: str, deadline: float) -> Vector:
        """The vector of a question, by `deadline` (monotonic seconds). Raises EmbedderError."""
        return np.asarray(self.embed([text])[0], dtype=np.float32)

    def close(self) -> None:  # noqa: B027 (most have nothing to give back)
        """Give back what it holds open."""


def unit(vectors: Vectors) -> Vectors:
    """Each of length 1; zero vectors stay."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, 1e-9), dtype=np.float32)


def load_model() -> Any:
    """wordllama's own model object. Its loader looks for the tokenizer in the wrong folder of its own package; with
    `cache_dir` at the package it finds both files."""
    import wordllama

    folder = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder, dim=DIMENSIONS, disable_download=True)


def load_background() -> Background:
    """Document frequencies of general text (tests/calibration/measure_background.py)."""
    table = msgspec.msgpack.decode((DATA / "background.msgpack").read_bytes())
    docs = table["docs"]
    return Background(share={term: count / docs for term, count in table["df"].items()}, rare=0.5 / docs)


class StaticEmbedder(Embedder):
    """256 dimensions, 0.3 ms for a question, with the common component of general text removed."""

    dimensions = DIMENSIONS

    def __init__(self) -> None:
        from importlib.metadata import version

        self._model = load_model()
        # It keeps what became of the last 10,000 texts of under 256 bytes, 45 to 65 MiB, and none comes twice.
        self._model.tokenizer.model._resize_cache(0)
        self._common = np.frombuffer((DATA / "common.f32").read_bytes(), dtype="<f4")
        self.identity = f"wordllama-{version('wordllama')}/l2_supercat_{DIMENSIONS}/common-1"

    def embed(self, texts: list[str]) -> Vectors:
        raw: Vectors = self._model.embed([text[:TEXT_CHARS_MAX] or " " for text in texts])
        return unit(unit(raw) - self._common)
