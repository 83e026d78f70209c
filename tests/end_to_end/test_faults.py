"""The environment's faults: a full disk, damaged files, a second daemon, a wrong configuration."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from daemon_process import DaemonProcess, wait_until
from recalld_client import Client, SyncClient

CTX = {"agent_id": "main", "session_key": "agent:main:chat"}


def turn(client: Client, run: str, user: str, answer: str = "Noted.") -> None:
    ctx = {**CTX, "run_id": run}
    client.emit("llm_input", {"prompt": user}, ctx)
    client.emit("llm_output", {"assistantTexts": [answer]}, ctx)
    client.emit("agent_end", {"success": True, "messages": []}, ctx)


@pytest.mark.anyio
async def test_a_full_disk_acknowledges_nothing_and_loses_nothing(daemon: DaemonProcess) -> None:
    assert daemon.process is not None
    notices: list[dict[str, Any]] = []
    async with Client(name="gw", runtime_dir=daemon.runtime_dir, on_notice=notices.append) as client:
        await wait_until(lambda: client.connected)
        turn(client, "r1", "The attic key is blue.")
        assert await client.flush(20)
        await client.drain(timeout_s=20)
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        turn(client, "r2", "The cellar key is green.")
        await wait_until(lambda: any(n.get("code") == "E_STORAGE" for n in notices))
        assert client.pending == 3
        recalled = await client.recall(
            "What colour is the attic key?", {**CTX, "session_key": "agent:main:b"}, ttl_ms=5_000
        )
        assert "blue" in recalled.text  # recall goes on
        assert any("storage" in fault for fault in (await client.status())["faults"])
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert await client.flush(30)
        await client.drain(timeout_s=30)
        recalled = await client.recall(
            "What colour is the cellar key?", {**CTX, "session_key": "agent:main:b"}, ttl_ms=5_000
        )
        assert "green" in recalled.text
        assert (await client.status())["faults"] == []


def fill(daemon: DaemonProcess, count: int = 40) -> None:
    with SyncClient(name="gw", runtime_dir=daemon.runtime_dir) as client:
        for n in range(count):
            client.store(f"Shelf number {n} holds the boxes of kind {n * 7}.", CTX)
        client.drain()


def found(daemon: DaemonProcess, query: str = "What is on shelf number 17?") -> str:
    with SyncClient(name="gw", runtime_dir=daemon.runtime_dir) as client:
        return str(client.search(query, CTX)["memories"][0]["text"])


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def damage_words(index: Path) -> None:
    flip_a_byte(max(index.rglob("*.term"), key=lambda p: p.stat().st_size))


def lose_words(index: Path) -> None:
    next(index.rglob("*.idx")).unlink()


def lose_everything(index: Path) -> None:
    import shutil

    shutil.rmtree(index)


@pytest.mark.parametrize("harm", [damage_words, lose_words, lose_everything])
def test_a_damaged_word_index_is_rebuilt_at_start(short_folder: Path, harm: Callable[[Path], None]) -> None:
    daemon = DaemonProcess(short_folder, index__commit_ms="20")
    with daemon:
        fill(daemon)
    harm(daemon.data_dir / "index")
    with daemon:
        assert found(daemon).startswith("Shelf number 17 ")


def snapshot_command(daemon: DaemonProcess) -> list[str]:
    with sqlite3.connect(f"file:{daemon.data_dir}/recalld.db?mode=ro", uri=True) as db:
        identity = db.execute("SELECT identity FROM models").fetchone()[0]
    db.close()
    folder = next((daemon.data_dir / "index").iterdir()) / "vectors"
    return [
        sys.executable,
        "-m",
        "recalld.edge.snapshot",
        f"{daemon.data_dir}/recalld.db",
        "main",
        identity,
        str(folder),
        "1",
    ]


def test_a_snapshot_is_used_and_a_damaged_one_is_not(short_folder: Path) -> None:
    daemon = DaemonProcess(short_folder, index__commit_ms="20")
    with daemon:
        fill(daemon)
    subprocess.run(snapshot_command(daemon), check=True)
    (snapshot,) = (daemon.data_dir / "index").rglob("*.usearch")
    with daemon:
        assert found(daemon).startswith("Shelf number 17 ")
        fill(daemon, 50)  # ten are new: they are in the tail
        assert found(daemon, "What is on shelf number 47?").startswith("Shelf number 47 ")
    assert "dropped" not in daemon.log_path.read_text()
    assert snapshot.exists()
    flip_a_byte(snapshot)
    with daemon:
        assert found(daemon).startswith("Shelf number 17 ")
    assert "vector snapshot dropped" in daemon.log_path.read_text()


@pytest.mark.anyio
async def test_memories_of_another_model_are_derived_anew(short_folder: Path) -> None:
    daemon = DaemonProcess(short_folder, index__commit_ms="20")
    with daemon:
        await anyio.to_thread.run_sync(fill, daemon)
    with sqlite3.connect(daemon.data_dir / "recalld.db") as db:
        db.execute("UPDATE models SET identity = 'another model with as many dimensions'")
    db.close()
    with daemon:
        await wait_until(lambda: "derived anew" in daemon.log_path.read_text())
        assert (await anyio.to_thread.run_sync(found, daemon)).startswith("Shelf number 17 ")
    with sqlite3.connect(daemon.data_dir / "recalld.db") as db:
        assert db.execute("SELECT model_id, count(*) FROM embeddings GROUP BY model_id").fetchall() == [
            (1, 40),
            (2, 40),
        ]
    db.close()


@pytest.mark.anyio
async def test_a_running_daemon_has_snapshots_made(short_folder: Path) -> None:
    daemon = DaemonProcess(short_folder, index__commit_ms="20", index__snapshot_items="16")
    with daemon:
        await anyio.to_thread.run_sync(fill, daemon)
        await wait_until(lambda: "snapshot taken in" in daemon.log_path.read_text(), 60)
        assert (await anyio.to_thread.run_sync(found, daemon)).startswith("Shelf number 17 ")


@pytest.mark.anyio
async def test_indexes_are_made_anew_while_memories_arrive(short_folder: Path) -> None:
    daemon = DaemonProcess(short_folder, index__commit_ms="20")
    with daemon:
        await anyio.to_thread.run_sync(fill, daemon)
        async with Client(name="gw", runtime_dir=daemon.runtime_dir) as client:
            stored: list[str] = []

            async def store_and_find() -> None:
                for n in range(60):
                    text = f"Locker number {1000 + n} holds the boots of crew {n}."
                    stored.append((await client.store(text, CTX))["id"])

            async with anyio.create_task_group() as tg:
                tg.start_soon(store_and_find)
                for what in ("words", "all", "vectors", "words"):
                    assert (await client.reindex(CTX, what, timeout_s=60))["seconds"] > 0
            await client.drain()
            for n, memory_id in enumerate(stored):
                answer = await client.search(f"locker number {1000 + n} boots crew", CTX, limit=100)
                places = [m["id"] for m in answer["memories"]]
                assert places.count(memory_id) == 1
            assert (await anyio.to_thread.run_sync(found, daemon)).startswith("Shelf number 17 ")
            assert (await client.status())["faults"] == []
    with daemon:  # and what was made is what a start expects
        assert (await anyio.to_thread.run_sync(found, daemon)).startswith("Shelf number 17 ")
    assert "rebuilt" not in daemon.log_path.read_text()
    assert "dropped" not in daemon.log_path.read_text()


def start_fails(daemon: DaemonProcess) -> str:
    """What a daemon that does not start says."""
    with pytest.raises(AssertionError) as caught:
        daemon.start()
    assert "Traceback" not in str(caught.value)
    return str(caught.value)


def test_a_damaged_database_is_named_and_left_alone(short_folder: Path) -> None:
    daemon = DaemonProcess(short_folder)
    daemon.data_dir.mkdir(mode=0o700)
    path = daemon.data_dir / "recalld.db"
    path.write_bytes(b"this is not a database, whatever it says" * 200)
    before = path.read_bytes()
    text = start_fails(daemon)
    assert str(path) in text
    assert "damaged" in text
    assert daemon.process is not None
    assert daemon.process.returncode == 5
    assert path.read_bytes() == before


def test_a_locked_database_is_named(short_folder: Path) -> None:
    daemon = DaemonProcess(short_folder)
    with daemon:
        pass
    with sqlite3.connect(daemon.data_dir / "recalld.db") as db:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("BEGIN EXCLUSIVE")
        text = start_fails(daemon)
        db.rollback()
    db.close()
    assert "locked" in text
    assert "another program holds it" in text


def test_a_database_of_a_newer_recalld_is_refused(short_folder: Path) -> None:
    daemon = DaemonProcess(short_folder)
    with daemon:
        pass
    with sqlite3.connect(daemon.data_dir / "recalld.db") as db:
        db.execute("INSERT INTO migrations VALUES (999, 'x')")
    db.close()
    assert "newer recalld" in start_fails(daemon)


def test_a_second_daemon_on_the_same_folder_is_refused(daemon: DaemonProcess) -> None:
    assert daemon.process is not None
    second = DaemonProcess(daemon.folder)
    assert f"pid {daemon.process.pid}" in start_fails(second)
    assert second.process is not None
    assert second.process.returncode == 4
    other = DaemonProcess(daemon.folder)
    other.env["RECALLD_DATA_DIR"] = str(daemon.folder / "other")  # another folder, the same sockets
    assert "in use" in start_fails(other)
    with SyncClient(name="gw", runtime_dir=daemon.runtime_dir) as client:
        assert client.status()["daemon"]["name"] == "recalld"  # the first one did not notice


def test_a_folder_that_cannot_be_written_is_named(short_folder: Path) -> None:
    daemon = DaemonProcess(short_folder)
    (short_folder / "data").write_text("a file where the folder should be")
    text = start_fails(daemon)
    assert str(daemon.data_dir) in text
    assert daemon.process is not None
    assert daemon.process.returncode == 3


def test_a_stale_socket_and_lock_of_a_killed_daemon_do_not_matter(short_folder: Path) -> None:
    daemon = DaemonProcess(short_folder)
    daemon.start()
    daemon.kill()
    assert (daemon.runtime_dir / "rpc.ipc").exists()
    with daemon:
        pass
    assert not (daemon.runtime_dir / "rpc.ipc").exists()


@pytest.mark.anyio
async def test_sighup_takes_up_what_it_can_and_a_wrong_file_changes_nothing(short_folder: Path) -> None:
    path = short_folder / "recalld.toml"
    path.write_text("[recall]\nfloor = 0.5\n")
    daemon = DaemonProcess(short_folder, config=str(path))
    with daemon:
        async with Client(name="gw", runtime_dir=daemon.runtime_dir) as client:
            await client.store("The lighthouse keeper is called Marit.", CTX)
            ctx = {**CTX, "session_key": "agent:main:b"}
            prompt = "What is the lighthouse keeper called?"
            assert (await client.recall(prompt, ctx, ttl_ms=5_000)).status == "ok"
            path.write_text("[recall]\nfloor = 1.9\n")
            daemon.signal(signal.SIGHUP)
            await wait_until(lambda: "reload complete" in daemon.log_path.read_text())
            assert (await client.recall(prompt, ctx, ttl_ms=5_000)).status == "empty"
            path.write_text("[recall]\nfloop = 1\n")
            daemon.signal(signal.SIGHUP)
            await wait_until(lambda: "reload failed" in daemon.log_path.read_text())
            assert any("recall.floop" in fault for fault in (await client.status())["faults"])
            assert (await client.recall(prompt, ctx, ttl_ms=5_000)).status == "empty"


def test_no_file_of_the_daemon_is_left_open_to_others(daemon: DaemonProcess) -> None:
    fill(daemon, 3)
    for path in daemon.data_dir.rglob("*"):
        assert path.stat().st_uid == os.getuid()
        if path.is_file():
            assert path.stat().st_mode & 0o077 == 0, path
