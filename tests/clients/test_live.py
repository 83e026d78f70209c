"""The client against a real daemon."""

import asyncio
import os
import signal
import time

import pytest

from recalld_client import Client, Recall, RecalldError, SyncClient

from .live import FACT, QUESTION, Daemon, scope

pytestmark = pytest.mark.anyio


def tell(client: Client | SyncClient, fact: str = FACT, run: str = "run-1", agent: str = "main") -> None:
    ctx = scope(agent, "first", run_id=run)
    client.emit("llm_input", {"prompt": fact}, ctx)
    client.emit("llm_output", {"assistantTexts": ["Good to know."]}, ctx)
    client.emit("agent_end", {"success": True}, ctx)


async def ask(client: Client, agent: str = "main", question: str = QUESTION) -> Recall:
    return await client.recall(question, scope(agent, "second"), ttl_ms=2000)


async def test_a_fact_is_recalled_in_another_session_of_the_same_agent_only(daemon: Daemon) -> None:
    async with Client("live", daemon.runtime_dir) as client:
        assert await client.ready(10)
        tell(client)
        assert await client.flush(10)
        await client.drain(timeout_s=20)
        answer = await ask(client)
        assert answer.status in ("ok", "partial")
        assert "Aurora" in answer.text
        assert answer.memories
        other = await ask(client, "other")
        assert (other.status, other.text, other.memories) == ("empty", "", [])


def test_the_synchronous_face_does_the_same(daemon: Daemon) -> None:
    with SyncClient("live", daemon.runtime_dir) as client:
        assert client.ready(10)
        tell(client)
        assert client.flush(10)
        client.drain(timeout_s=20)
        assert "Aurora" in client.recall(QUESTION, scope("main", "second"), ttl_ms=2000).text
        assert client.recall(QUESTION, scope("other", "second"), ttl_ms=2000).status == "empty"


async def test_the_tools(daemon: Daemon) -> None:
    ctx = scope("main", "first")
    async with Client("live", daemon.runtime_dir, timeout_s=20) as client:
        stored = await client.store(FACT, ctx, category="fact")
        assert stored["stored"] is True
        assert (await client.store(FACT, ctx, category="fact"))["stored"] is False
        found = await client.search("boat Aurora", ctx)
        assert stored["id"] in [memory["id"] for memory in found["memories"]]
        assert (await client.get(stored["id"], ctx))["memory"]["text"] == FACT
        with pytest.raises(RecalldError, match="E_NOT_FOUND"):
            await client.get(stored["id"], scope("other", "first"))
        with pytest.raises(RecalldError, match="E_SCOPE"):
            await client.search("boat", {})
        assert stored["id"] in (await client.forget(stored["id"], ctx))["forgotten"]
        with pytest.raises(RecalldError, match="E_NOT_FOUND"):
            await client.get(stored["id"], ctx)
        assert await client.status()
        assert await client.toggle("off", ctx) == {"global": "on", "session": "off"}
        assert (await client.recall(QUESTION, ctx, ttl_ms=2000)).reason == "toggled_off"
        assert await client.toggle("on", ctx) == {"global": "on", "session": "on"}
        with pytest.raises(RecalldError, match="E_SCOPE"):
            await client.toggle("off", {"agent_id": "main"})


async def test_events_the_daemon_must_refuse_do_not_hold_up_the_rest(daemon: Daemon) -> None:
    async with Client("live", daemon.runtime_dir) as client:
        assert await client.ready(10)
        client.emit("llm_input", {"prompt": "x"}, scope("main", "first") | {"sender_name": "x" * 600})
        client.emit("a type of tomorrow", {}, scope("main", "first"))
        client.emit("llm_input", {"prompt": float("nan"), "half": "\ud83d"}, {})
        tell(client)
        assert await client.flush(20)


async def test_a_stopped_daemon_is_a_timeout_and_goes_on_afterwards(daemon: Daemon) -> None:
    async with Client("live", daemon.runtime_dir) as client:
        assert await client.ready(10)
        os.kill(daemon.process.pid, signal.SIGSTOP)
        try:
            started = time.monotonic()
            answer = await client.recall(QUESTION, scope("main", "second"), ttl_ms=100)
            assert answer.status == "timeout"
            assert time.monotonic() - started < 5
            tell(client)
            assert client.pending == 3
        finally:
            os.kill(daemon.process.pid, signal.SIGCONT)
        assert await client.flush(20)
        assert client.lost == 0


async def test_nothing_is_lost_when_the_daemon_is_killed(daemon: Daemon) -> None:
    async with Client("live", daemon.runtime_dir) as client:
        assert await client.ready(10)
        for number in range(300):
            client.emit("after_tool_call", {"n": number}, scope("main", "first", run_id="run-0"))
        await asyncio.to_thread(daemon.kill)  # in the middle of it, most likely
        tell(client)
        assert (await ask(client)).status == "unavailable"
        await asyncio.to_thread(daemon.start)
        assert await client.flush(30)
        assert (client.pending, client.lost) == (0, 0)
        await client.drain(timeout_s=20)
        assert "Aurora" in (await ask(client)).text
