"""The synchronous face, from threads that have no event loop; and the README's example, which uses it."""

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

import recalld_client.sync
from recalld_client import Client, Recall, RecalldError, RecalldUnavailable, SyncClient

from .fake_daemon import FakeDaemon, until

pytestmark = pytest.mark.anyio

T = TypeVar("T")
CTX = {"agent_id": "main", "session_key": "agent:main:chat"}
README = Path(__file__).parents[2] / "clients" / "python" / "README.md"


async def outside(function: Callable[[], T]) -> T:
    """In a thread, while the fake daemon goes on in this loop."""
    return await asyncio.to_thread(function)


async def test_everything_a_gateway_does(fake: FakeDaemon) -> None:
    notices: list[dict[str, Any]] = []

    def gateway() -> tuple[list[int], Recall, dict[str, Any]]:
        with SyncClient("sync", fake.runtime_dir, on_notice=notices.append) as client:
            assert client.ready(5)
            assert client.connected
            assert client.limits["unacked_max"] == 8192
            seqs = [client.emit("llm_input", {"prompt": str(number)}, CTX) for number in range(300)]
            assert client.flush(10)
            assert (client.pending, client.lost) == (0, 0)
            assert client.src.startswith("sync-")
            answer = client.recall("boats", CTX, ttl_ms=5000)
            for result in (
                client.get("m", CTX),
                client.store("t", CTX, pinned=True),
                client.forget("m", CTX),
                client.status(),
                client.drain(),
                client.reindex(CTX),
                client.toggle("status"),
                client.publish([]),
            ):
                assert result["op"]
            return seqs, answer, client.search("x", CTX, limit=2)

    seqs, answer, found = await outside(gateway)
    assert seqs == fake.seqs == list(range(1, 301))
    assert answer.text == "about boats"
    assert found == {"op": "search"}
    assert [request["op"] for request in fake.requests] == [
        "get",
        "store",
        "forget",
        "status",
        "drain",
        "reindex",
        "toggle",
        "publish",
        "search",
    ]
    assert notices[0]["type"] == "welcome"


async def test_it_has_the_same_calls() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(Client) <= public(SyncClient)


async def test_without_a_daemon(runtime_dir: Path) -> None:
    def gateway() -> None:
        with SyncClient("sync", runtime_dir, close_timeout_s=0.05) as client:
            assert client.emit("llm_input", {"prompt": "x"}, CTX) == 1
            assert client.recall("x", CTX).status == "unavailable"
            assert not client.ready(0.01)
            assert not client.flush(0.01)
            assert client.pending == 1
            with pytest.raises(RecalldUnavailable):
                client.status()

    await outside(gateway)


async def test_a_daemon_that_does_not_answer(fake: FakeDaemon) -> None:
    fake.contexts = lambda question: []
    fake.replies = lambda request: None

    def gateway() -> None:
        with SyncClient("sync", fake.runtime_dir, timeout_s=0.05) as client:
            assert client.ready(5)
            assert client.recall("x", CTX, ttl_ms=10).status == "timeout"
            with pytest.raises(RecalldUnavailable, match="no reply"):
                client.status()
            with pytest.raises(RecalldUnavailable, match="no reply"):
                client.status(timeout_s=0.01)

    await outside(gateway)


async def test_a_refusal(fake: FakeDaemon) -> None:
    fake.replies = lambda request: {"ok": False, "error": {"code": "E_SCOPE", "message": "m", "remedy": "r"}}

    def gateway() -> None:
        with SyncClient("sync", fake.runtime_dir) as client, pytest.raises(RecalldError, match="E_SCOPE"):
            client.search("x", {})

    await outside(gateway)


async def test_recall_never_raises(fake: FakeDaemon) -> None:
    def gateway() -> None:
        with SyncClient("sync", fake.runtime_dir) as client:
            assert client.ready(5)
            wrong: Any = "soon"
            assert client.recall("x", CTX, ttl_ms=wrong).status == "error"
            assert client.recall("x", wrong, ttl_ms=5000).status == "error"
        assert client.recall("x", CTX).status == "unavailable"
        with pytest.raises(RecalldUnavailable):
            client.status()
        assert not client.flush(0.01)

    await outside(gateway)


async def test_a_thread_that_is_kept_from_running(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recalld_client.sync, "SLACK_S", 0.05)
    release = threading.Event()

    def block(notice: dict[str, Any]) -> None:
        if notice["type"] == "captured":
            release.wait()

    def gateway() -> None:
        with SyncClient("sync", fake.runtime_dir, on_notice=block, timeout_s=0.05) as client:
            assert client.ready(5)
            fake_loop.call_soon_threadsafe(fake.publish, client.src, {"type": "captured"})
            statuses = [""]
            while statuses[-1] != "timeout":  # until the notice is there
                statuses.append(client.recall("x", CTX, ttl_ms=1).status)
            with pytest.raises(RecalldUnavailable, match="does not run"):
                client.status()
            assert not client.flush(0.01)
            release.set()

    fake_loop = asyncio.get_running_loop()
    async with asyncio.timeout(20):
        await outside(gateway)


async def test_many_threads_at_a_time(fake: FakeDaemon) -> None:
    texts: list[str] = []

    def gateway() -> None:
        with SyncClient("sync", fake.runtime_dir) as client:
            assert client.ready(5)

            def ask(number: int) -> None:
                client.emit("llm_input", {"prompt": str(number)}, CTX)
                texts.append(client.recall(str(number), CTX, ttl_ms=10_000).text)

            threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    await outside(gateway)
    assert sorted(texts) == sorted(f"about {number}" for number in range(20))
    assert fake.disks[next(iter(fake.disks))].upto == 20


async def test_leaving_sends_what_is_left_and_ends_the_thread(fake: FakeDaemon) -> None:
    def gateway() -> SyncClient:
        with SyncClient("sync", fake.runtime_dir) as client:
            client.emit("llm_input", {"prompt": "x"}, CTX)
            assert any(client.src in thread.name for thread in threading.enumerate())
            with pytest.raises(RuntimeError, match="entered"):
                client.__enter__()
        return client

    client = await outside(gateway)
    assert client.pending == 0
    assert not any(client.src in thread.name for thread in threading.enumerate())
    await until(lambda: not fake.writers["events"])


async def test_the_example_of_the_readme_runs(fake: FakeDaemon) -> None:
    match = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert match is not None
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-W",
        "error",
        "-c",
        match[1],
        env={"RECALLD_RUNTIME_DIR": str(fake.runtime_dir)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert out.decode().splitlines() == ["ok", "about Where is my boat?", "", "Where is my boat?"]
    assert [message["type"] for message in fake.received if "seq" in message] == [
        "llm_input",
        "llm_output",
        "agent_end",
    ]
