"""A server of embeddings, good and bad: what it answers, what it costs, and what people are told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_embeddings import FakeEmbeddings
from recalld.config import EmbedderConfig
from recalld.edge.openai import BATCH_TEXTS, OpenAIEmbedder
from recalld.errors import ConfigError, EmbedderError

OPEN: list[OpenAIEmbedder] = []


@pytest.fixture
def server() -> Iterator[FakeEmbeddings]:
    with FakeEmbeddings() as server:
        yield server
        while OPEN:
            OPEN.pop().close()


def embedder_of(server: FakeEmbeddings, environ: dict[str, str] | None = None, **fields: Any) -> OpenAIEmbedder:
    config = EmbedderConfig(kind="openai", base_url=server.url, model="m", **fields)
    OPEN.append(OpenAIEmbedder(config, environ or {}))
    return OPEN[-1]


def soon() -> float:
    return time.monotonic() + 10


def test_texts_become_unit_vectors_in_their_order(server: FakeEmbeddings) -> None:
    embedder = embedder_of(server)
    assert embedder.dimensions == 0
    texts = [f"word{n}" for n in range(BATCH_TEXTS + 3)]
    vectors = embedder.embed(texts)
    assert (vectors.shape, embedder.dimensions) == ((len(texts), 32), 32)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-6)
    assert [len(batch) for batch in server.inputs] == [BATCH_TEXTS, 3]
    for n in (0, 1, BATCH_TEXTS):
        assert embedder.embed_query(texts[n], soon()) == pytest.approx(vectors[n])
    assert server.connections == 1  # kept open
    assert embedder.embed([]).shape == (0, 32)


def test_a_long_text_is_cut_and_an_empty_one_is_not_sent_empty(server: FakeEmbeddings) -> None:
    embedder_of(server).embed(["x" * 100_000, ""])
    assert [len(text) for text in server.inputs[0]] == [4_096, 1]


def test_configured_dimensions_are_asked_for_and_part_of_the_identity(server: FakeEmbeddings) -> None:
    embedder = embedder_of(server, dimensions=32)
    embedder.embed(["x"])
    assert server.asked[0]["dimensions"] == 32
    assert embedder.identity != embedder_of(server).identity


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("status", r"HTTP 500 \(out of memory\)"),
        ("key", "correct `embedder.api_key`"),
        ("garbage", "not a list of embeddings"),
        ("missing", "1 vectors for 2 texts"),
        ("hang up", "cannot be asked"),
        ("half", "cannot be asked"),
        ("refusal", "HTTP 400"),
    ],
)
def test_a_broken_server_is_an_error_that_names_it(server: FakeEmbeddings, fault: str, message: str) -> None:
    embedder = embedder_of(server, {"K": "sk-secret"}, api_key="env:K")
    server.fault = fault
    with pytest.raises(EmbedderError, match=message) as caught:
        embedder.embed(["one", "two"])
    assert server.url in str(caught.value)
    assert "sk-secret" not in str(caught.value)
    server.fault = ""
    assert embedder.embed(["one", "two"]).shape == (2, 32)  # and afterwards it is used again


def test_a_stuck_server_is_given_up_at_the_deadline(server: FakeEmbeddings) -> None:
    embedder = embedder_of(server)
    server.answering.clear()
    with pytest.raises(EmbedderError, match="in time"):
        embedder.embed_query("x", time.monotonic() + 0.05)
    with pytest.raises(EmbedderError, match="in time"):
        embedder.embed_query("x", time.monotonic() - 1)


def test_nobody_there_is_an_error(server: FakeEmbeddings) -> None:
    embedder = OpenAIEmbedder(EmbedderConfig(base_url="http://127.0.0.1:1/v1", model="m"), {})
    with pytest.raises(EmbedderError, match="is it running"):
        embedder.embed(["x"])


def test_a_connection_closed_while_idle_is_made_anew(server: FakeEmbeddings) -> None:
    embedder = embedder_of(server)
    server.fault = "last"
    for _ in range(3):
        assert embedder.embed_query("x", soon()).shape == (32,)


def test_another_size_than_before_is_refused(server: FakeEmbeddings) -> None:
    embedder = embedder_of(server)
    embedder.embed(["x"])
    server.dimensions = 16
    with pytest.raises(EmbedderError, match="16 dimensions where m has 32"):
        embedder.embed_query("x", soon())


def test_a_text_that_the_model_refuses_is_like_nothing_and_the_others_are_kept(server: FakeEmbeddings) -> None:
    server.poison = "bitter"
    vectors = embedder_of(server).embed(["sweet", "bitter", "sour"])
    assert vectors.any(axis=1).tolist() == [True, False, True]


def test_the_key_is_sent_and_comes_from_elsewhere(server: FakeEmbeddings, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-file\n")
    embedder_of(server, {"K": "sk-env"}, api_key="env:K").embed(["x"])
    embedder_of(server, api_key=f"file:{tmp_path}/key").embed(["x"])
    embedder_of(server).embed(["x"])
    assert server.keys == ["Bearer sk-env", "Bearer sk-file", None]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": ""}, "embedder.model"),
        ({"base_url": "localhost:11434"}, "embedder.base_url"),
        ({"base_url": "ftp://localhost/v1"}, "embedder.base_url"),
        ({"api_key": "env:NOT_THERE"}, "NOT_THERE, which is not set"),
        ({"api_key": "file:/not/there"}, "/not/there, which cannot be read"),
    ],
)
def test_a_wrong_configuration_names_the_key(fields: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OpenAIEmbedder(EmbedderConfig(**{"model": "m", **fields}), {})  # type: ignore[arg-type]
