"""kill -9: a publisher keeps sending while the daemon is killed and restarted; what was acknowledged is there exactly once."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from pathlib import Path

import anyio
import pytest

from daemon_process import DaemonProcess, wait_until
from recalld_client import Client

KILLS = 20


@pytest.mark.timeout(180)
@pytest.mark.anyio
async def test_twenty_kills_lose_and_double_nothing(short_folder: Path) -> None:
    rng = random.Random(20)
    daemon = DaemonProcess(short_folder, turns__quiet_ms="100", turns__grace_ms="20", index__commit_ms="20")
    await anyio.to_thread.run_sync(daemon.start)
    sent: list[str] = []
    stop = anyio.Event()

    async def publish(client: Client) -> None:
        while not stop.is_set():
            run = f"run-{len(sent)}"
            ctx = {"agent_id": "main", "session_key": f"agent:main:{rng.choice('abcd')}", "run_id": run}
            sent.append(run)
            client.emit("llm_input", {"prompt": f"question of {run}"}, ctx)
            client.emit("llm_output", {"assistantTexts": [f"answer of {run}"]}, ctx)
            if rng.random() < 0.7:
                client.emit("agent_end", {"success": True, "messages": []}, ctx)
            await anyio.sleep(rng.choice((0, 0.001, 0.01)))
            await wait_until(lambda: client.pending < 4_000)  # the buffer's bound is another test's matter

    async with Client(name="publisher", runtime_dir=daemon.runtime_dir) as client:
        async with anyio.create_task_group() as tg:
            tg.start_soon(publish, client)
            for _ in range(KILLS):
                await anyio.sleep(rng.uniform(0.0, 0.4))
                daemon.kill()
                await anyio.to_thread.run_sync(daemon.start)
            stop.set()
        assert await client.flush(60)
        assert client.lost == 0
        await client.drain(timeout_s=60)
    await anyio.to_thread.run_sync(daemon.stop)

    with sqlite3.connect(f"file:{daemon.data_dir}/recalld.db?mode=ro", uri=True) as db:
        turns = db.execute(
            "SELECT r.run_id, t.user, t.assistant, t.outcome FROM turns t JOIN turn_runs r ON r.turn_id = t.id"
        ).fetchall()
        memories = Counter(r for (r,) in db.execute("SELECT turn_id FROM memories WHERE kind = 'turn'"))
        left = db.execute("SELECT count(*) FROM journal").fetchone()[0]
        count = db.execute("SELECT count(*) FROM turns").fetchone()[0]
    db.close()
    assert len(sent) > KILLS
    assert Counter(run for run, *_ in turns) == Counter(sent)
    assert count == len(sent)
    assert {(user, answer, outcome) for _, user, answer, outcome in turns} == {
        (f"question of {run}", f"answer of {run}", "captured") for run in sent
    }
    assert set(memories.values()) == {1}
    assert len(memories) == len(sent)
    assert left == 0


@pytest.mark.anyio
async def test_an_open_turn_survives_the_daemon_and_its_note_is_written_once(short_folder: Path) -> None:
    daemon = DaemonProcess(short_folder, turns__quiet_ms="60000", turns__grace_ms="60000")
    await anyio.to_thread.run_sync(daemon.start)
    ctx = {"agent_id": "main", "session_key": "agent:main:a", "run_id": "r1"}
    async with Client(name="publisher", runtime_dir=daemon.runtime_dir) as client:
        client.emit("llm_input", {"prompt": "keep the spare key under the fern"}, ctx)
        assert await client.flush(20)
        daemon.kill()
        await anyio.to_thread.run_sync(daemon.start)
        await wait_until(lambda: client.connected)
        client.emit("llm_output", {"assistantTexts": ["The fern it is."]}, ctx)
        assert await client.flush(20)
        daemon.kill()
        await anyio.to_thread.run_sync(daemon.start)
        await wait_until(lambda: client.connected)
        assert (await client.drain(timeout_s=20))["closed"] == 1
        recalled = await client.recall("where is the spare key?", {**ctx, "session_key": "agent:main:b"}, ttl_ms=5_000)
        assert "under the fern" in recalled.text
        assert "The fern it is." in recalled.text
    await anyio.to_thread.run_sync(daemon.stop)
    notes = [p.read_text() for p in (daemon.data_dir / "notes").rglob("*.md")]
    assert sum(text.count("spare key") for text in notes) == 1
