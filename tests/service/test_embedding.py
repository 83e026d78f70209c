"""Questions to an embedder that may be stuck, and vectors that come after their memories."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import numpy as np
import pytest

from daemon_process import wait_until
from fake_embeddings import bag
from recalld.config import IndexConfig
from recalld.core.words import ANALYSER
from recalld.edge.embed import Embedder, Vector, Vectors, unit
from recalld.edge.features import ids_and_vectors
from recalld.edge.reader import Reader
from recalld.edge.snapshot import build
from recalld.edge.store import Store
from recalld.edge.units import Attributes
from recalld.errors import EmbedderError
from recalld.service.counters import Counters
from recalld.service.embedding import FAILURES_MAX, THREADS, WAITING_MAX, Questions
from recalld.service.indexing import Indexing
from recalld.service.memories import Memories
from recalld.service.writer import Writer

TEXTS = ("The winter tyres are in the barn.", "The boat is red.")


class Bags(Embedder):
    """Bags of words, of as many dimensions as wanted; `gate` holds every request, `broken` fails it."""

    later = True
    remote = True

    def __init__(self, dimensions: int = 32) -> None:
        self.identity = f"bags-{dimensions}"
        self.dimensions = dimensions
        self.gate = threading.Event()
        self.gate.set()
        self.broken = False
        self.asked = 0

    def embed(self, texts: list[str]) -> Vectors:
        self.asked += 1
        self.gate.wait(20)
        if self.broken:
            raise EmbedderError("the embedder is broken")
        return unit(np.array([bag(text, self.dimensions) for text in texts], dtype=np.float32))


class AtOnce(Bags):
    """As quick as the static one."""

    later = False
    remote = False


# -- questions


class Answers:
    def __init__(self) -> None:
        self.got: list[Vector | None] = []
        self.came = threading.Semaphore(0)

    def __call__(self, vector: Vector | None) -> None:
        self.got.append(vector)
        self.came.release()

    def wait(self) -> Vector | None:
        assert self.came.acquire(timeout=20)
        return self.got[-1]


def questions_of(
    embedder: Embedder, counters: Counters, *, timeout_s: float = 20.0, retry_s: float = 60.0
) -> Questions:
    questions = Questions(embedder, counters, timeout_s, retry_s)
    questions.start()
    return questions


def soon() -> float:
    return time.monotonic() + 20


def test_a_question_gets_its_vector() -> None:
    embedder, answers = Bags(), Answers()
    questions = questions_of(embedder, Counters())
    questions.ask("winter tyres", soon(), answers)
    vector = answers.wait()
    assert vector is not None
    assert vector == pytest.approx(embedder.embed(["winter tyres"])[0])
    questions.stop()


def test_a_broken_embedder_is_left_alone_and_the_fault_says_why() -> None:
    embedder, counters, answers = Bags(), Counters(), Answers()
    embedder.broken = True
    questions = questions_of(embedder, counters)
    for _ in range(FAILURES_MAX):
        questions.ask("x", soon(), answers)
        assert answers.wait() is None
    assert "the embedder is broken; recall goes on with words" in counters.faults["embedder"]
    questions.ask("x", soon(), answers)
    assert len(answers.got) == FAILURES_MAX + 1  # answered within `ask`
    assert embedder.asked == FAILURES_MAX
    questions.stop()


def test_a_stuck_embedder_is_left_alone_though_no_thread_came_back() -> None:
    embedder, counters, answers = Bags(), Counters(), Answers()
    embedder.gate.clear()
    questions = questions_of(embedder, counters, timeout_s=0.01)
    while "embedder" not in counters.faults:
        questions.ask("x", soon(), answers)
    before = len(answers.got)
    questions.ask("x", soon(), answers)
    assert answers.got[before:] == [None]  # within `ask`, while every request is still held
    assert embedder.asked <= THREADS
    embedder.gate.set()
    questions.stop()


def test_after_the_pause_one_question_finds_out_that_it_works_again() -> None:
    embedder, counters, answers = Bags(), Counters(), Answers()
    embedder.broken = True
    questions = questions_of(embedder, counters, retry_s=0.0)
    for _ in range(FAILURES_MAX):
        questions.ask("x", soon(), answers)
        answers.wait()
    assert "embedder" in counters.faults
    embedder.broken = False
    questions.ask("x", soon(), answers)
    assert answers.wait() is not None
    assert counters.faults == {}
    questions.stop()


def test_too_many_questions_are_answered_without_a_vector() -> None:
    embedder, answers = Bags(), Answers()
    embedder.gate.clear()
    questions = questions_of(embedder, Counters())
    for _ in range(WAITING_MAX + THREADS + 1):
        questions.ask("x", soon(), answers)
    assert answers.wait() is None
    embedder.gate.set()
    questions.stop()


# -- texts


class House:
    """The record and its indexes with an embedder, as the daemon joins them."""

    def __init__(self, folder: Path, embedder: Embedder, store: Store) -> None:
        self.counters = Counters()
        self.folder = folder
        self.store = store
        self.writer = Writer(store, self.counters)
        self.reader = Reader(store.path, store.model_id)
        self.indexing = Indexing(
            folder=folder / "index",
            store=store,
            reader=self.reader,
            writer=self.writer,
            embedder=embedder,
            identity=f"{embedder.identity} {ANALYSER}",
            counters=self.counters,
            config=IndexConfig(commit_ms=10),
            when_idle=lambda work: work(),
            retry_s=0.01,
        )
        self.indexing.open_all()
        self.memories = Memories(store, self.writer, self.indexing)

    async def remember(self, *texts: str) -> None:
        for text in texts:
            await self.memories.store_note("main", text, "note", 0, Attributes())

    def near(self, vector: Vector) -> list[int]:
        return self.indexing.namespaces["main"].vectors.search(vector, 3)


@asynccontextmanager
async def house_of(folder: Path, embedder: Embedder) -> AsyncIterator[House]:
    store = Store(folder / "r.db")
    await store.open(f"{embedder.identity} {ANALYSER}", embedder.dimensions)
    house = House(folder, embedder, store)
    try:
        async with anyio.create_task_group() as tg:
            tg.start_soon(house.writer.run)
            tg.start_soon(house.indexing.run)
            yield house
            tg.cancel_scope.cancel()
    finally:
        house.reader.close()
        for index in house.indexing.namespaces.values():
            if index.lexical is not None:
                index.lexical.close()
        with anyio.CancelScope(shield=True):
            await store.close()


def without_vector(house: House) -> Callable[[], bool]:
    return lambda: bool(house.reader.without_vector(1))


@pytest.mark.anyio
async def test_memories_are_kept_and_found_by_words_while_the_embedder_is_stuck(tmp_path: Path) -> None:
    embedder = Bags()
    embedder.gate.clear()
    async with house_of(tmp_path, embedder) as house:
        await house.remember(*TEXTS)
        await house.indexing.flush()
        index = house.indexing.namespaces["main"]
        assert index.lexical is not None
        assert index.lexical.search(["tyre"], 3).ids == [1]
        assert len(index.vectors) == 0
        rows = index.features.read([1, 2])
        assert (rows.ids, rows.vectors.shape) == ([1, 2], (2, 0))
        generation = index.generation
        embedder.gate.set()
        await house.indexing.vectors_made()
        assert house.near(embedder.embed(["winter tyres"])[0])[0] == 1
        assert index.features.read([1, 2]).vectors == pytest.approx(embedder.embed([*TEXTS]), abs=1e-3)
        assert index.generation > generation  # what was found without them is not given again


@pytest.mark.anyio
async def test_vectors_are_made_when_a_broken_embedder_works_again(tmp_path: Path) -> None:
    embedder = Bags()
    embedder.broken = True
    async with house_of(tmp_path, embedder) as house:
        await house.remember("The winter tyres are in the barn.")
        await house.indexing.vectors_made()  # as far as they can be
        assert "the embedder is broken; what is stored waits" in house.counters.faults["vectors"]
        await house.remember("The boat is red.")
        embedder.broken = False
        await wait_until(lambda: len(house.indexing.namespaces["main"].vectors) == 2)
        await wait_until(lambda: house.counters.faults == {})


@pytest.mark.anyio
async def test_the_dimensions_of_a_server_are_learnt_and_remembered(tmp_path: Path) -> None:
    embedder = Bags(24)
    embedder.dimensions, known = 0, 24
    embedder.embed = lambda texts: Bags(known).embed(texts)  # type: ignore[method-assign]
    async with house_of(tmp_path, embedder) as house:
        assert house.store.dimensions == 0
        await house.remember("The boat is red.")
        await house.indexing.vectors_made()
    async with house_of(tmp_path, embedder) as house:
        assert house.store.dimensions == known


@pytest.mark.anyio
async def test_a_refused_text_is_found_by_words_and_not_asked_for_again(tmp_path: Path) -> None:
    embedder = Bags()
    real = embedder.embed
    embedder.embed = lambda texts: real(texts) * (np.array([["bitter" not in t] for t in texts]))  # type: ignore[method-assign]
    async with house_of(tmp_path, embedder) as house:
        await house.remember("sweet", "bitter", "sour")
        await house.indexing.vectors_made()
        index = house.indexing.namespaces["main"]
        assert len(index.vectors) == 2
        assert ids_and_vectors(list(house.reader.entries("main", 0)))[0] == [1, 3]
        assert index.features.read([1, 2, 3]).vectors.any(axis=1).tolist() == [True, False, True]


@pytest.mark.anyio
async def test_another_model_takes_the_terms_over_and_its_vectors_stay_apart(tmp_path: Path) -> None:
    small, large = AtOnce(32), Bags(48)
    async with house_of(tmp_path, small) as house:
        await house.remember("The winter tyres are in the barn.", "The boat is red.")
        await house.indexing.flush()
        build(house.store.path, "main", f"{small.identity} {ANALYSER}", tmp_path / "index" / "x", 1)
    large.gate.clear()
    async with house_of(tmp_path, large) as house:
        index = house.indexing.namespaces["main"]
        assert index.lexical is not None
        assert index.lexical.search(["tyre"], 3).ids == [1]
        assert index.features.read([1, 2]).ids == [1, 2]  # what words are scored by is there from the start
        assert len(index.vectors) == 0
        await house.remember("The house is blue.")
        large.gate.set()
        await house.indexing.vectors_made()
        assert house.near(large.embed(["winter tyres"])[0])[0] == 1
        assert index.features.read([1, 2, 3]).vectors.shape == (3, 48)
    async with house_of(tmp_path, small) as house:
        await house.indexing.vectors_made()
        assert house.near(small.embed(["blue house"])[0])[0] == 3
        assert house.indexing.namespaces["main"].features.read([1, 2, 3]).vectors.shape == (3, 32)
    with sqlite3.connect(tmp_path / "r.db") as db:
        sql = "SELECT model_id, length(vector) / 2, count(*) FROM embeddings GROUP BY 1, 2"
        assert db.execute(sql).fetchall() == [(1, 32, 3), (2, 48, 3)]
    db.close()


@pytest.mark.anyio
async def test_a_snapshot_ends_below_the_first_memory_without_a_vector(tmp_path: Path) -> None:
    embedder = AtOnce()
    async with house_of(tmp_path, embedder) as house:
        await house.remember("one", "two", "three")
        identity = f"{embedder.identity} {ANALYSER}"
        await house.writer.write([("UPDATE embeddings SET vector = NULL WHERE memory_id = 2", [()])])
        assert build(house.store.path, "main", identity, tmp_path / "s", 1).memory_id == 1
        await house.indexing._make_vectors(house.reader)
        header = build(house.store.path, "main", identity, tmp_path / "s", 1)
        assert (header.memory_id, header.count, header.dimensions) == (3, 3, 32)
