"""A stop: what is open is drained, a drain that cannot be is given up, and what was acknowledged is there exactly once."""

from __future__ import annotations

import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import pytest

from daemon_process import DaemonProcess, wait_until
from recalld_client import SyncClient

TURNS = 40
WAIT_SECONDS = 25.0
NOT_IN_TIME = "not everything was drained in time; the journal has the rest"
FORCED = "stopped before everything was drained; the journal has the rest"


def never_closing(folder: Path, **settings: str) -> DaemonProcess:
    """A daemon whose turns stay open until it drains them."""
    return DaemonProcess(folder, turns__quiet_ms="600000", turns__grace_ms="600000", **settings)


def open_turns(daemon: DaemonProcess, count: int = TURNS) -> list[str]:
    """Open turns, one in each session; return their runs when all of their events are acknowledged."""
    runs = [f"run-{number}" for number in range(count)]
    with SyncClient(name="gw", runtime_dir=daemon.runtime_dir) as client:
        assert client.ready(WAIT_SECONDS)
        for run in runs:
            ctx = {"agent_id": "main", "session_key": f"agent:main:{run}", "run_id": run}
            client.emit("llm_input", {"prompt": f"question of {run}"}, ctx)
            client.emit("llm_output", {"assistantTexts": [f"answer of {run}"]}, ctx)
        assert client.flush(WAIT_SECONDS)
        assert client.status()["open_turns"] == count
    return runs


def close_turns(daemon: DaemonProcess) -> None:
    with SyncClient(name="gw", runtime_dir=daemon.runtime_dir) as client:
        client.drain(timeout_s=WAIT_SECONDS)


def assert_each_stored_once(daemon: DaemonProcess, runs: list[str]) -> None:
    """In the record of a daemon that is stopped."""
    expected = sorted((run, f"question of {run}", f"answer of {run}", "drain", "captured", 1) for run in runs)
    with closing(sqlite3.connect(f"file:{daemon.data_dir}/recalld.db?mode=ro", uri=True)) as db:
        stored = db.execute(
            "SELECT r.run_id, t.user, t.assistant, t.closed_by, t.outcome, (SELECT count(*) FROM memories WHERE turn_id = t.id)"
            " FROM turns t LEFT JOIN turn_runs r ON r.turn_id = t.id"
        ).fetchall()
        assert sorted(stored) == expected
        assert db.execute("SELECT count(*) FROM journal").fetchone() == (0,)


@contextmanager
def locked(daemon: DaemonProcess) -> Iterator[None]:
    """Another program that writes and does not come to an end."""
    with closing(sqlite3.connect(daemon.data_dir / "recalld.db", isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


# `recalld run`, with a disk that takes no more writes once a file `stuck` is there. `held` says that one waits.
STUCK = """
import sys, threading
from pathlib import Path
from recalld import cli
from recalld.edge import store
from recalld.service import app

app.LEAVE_SECONDS = 0.5
transact = store.WritingConnection._transact

def stuck_transact(connection, statements):
    if Path("{folder}/stuck").exists():
        Path("{folder}/held").touch()
        threading.Event().wait()
    transact(connection, statements)

store.WritingConnection._transact = stuck_transact
sys.argv[1:] = ["run"]
cli.main()
"""


def test_sigterm_drains_open_turns(short_folder: Path) -> None:
    daemon = never_closing(short_folder)
    with daemon:
        runs = open_turns(daemon)
        assert daemon.stop() == 0
    assert_each_stored_once(daemon, runs)
    assert NOT_IN_TIME not in daemon.log_path.read_text()


@pytest.mark.parametrize(
    ("drain_ms", "count"),
    [
        pytest.param(1, TURNS, id="nothing is closed"),
        pytest.param(60, 1_000, id="some may be stored"),
    ],
)
def test_what_is_not_drained_in_time_comes_back(short_folder: Path, drain_ms: int, count: int) -> None:
    daemon = never_closing(short_folder, drain_ms=str(drain_ms))
    with daemon:
        runs = open_turns(daemon, count)
        assert daemon.stop() == 0
    log = daemon.log_path.read_text()
    assert NOT_IN_TIME in log
    assert f"drain_ms={drain_ms}" in log
    assert "stop complete" in log
    daemon.env["RECALLD_DRAIN_MS"] = "20000"
    with daemon:
        close_turns(daemon)
    assert_each_stored_once(daemon, runs)


def test_a_database_that_others_hold_locked_does_not_hold_the_stop(short_folder: Path) -> None:
    daemon = never_closing(short_folder, drain_ms="500")
    with daemon:
        runs = open_turns(daemon)
        with locked(daemon):
            assert daemon.stop() == 0
    log = daemon.log_path.read_text()
    assert NOT_IN_TIME in log
    assert "stop complete" in log
    with daemon:
        close_turns(daemon)
    assert_each_stored_once(daemon, runs)


def test_a_second_sigterm_ends_the_drain(short_folder: Path) -> None:
    daemon = never_closing(short_folder, drain_ms="600000")
    with daemon:
        assert daemon.process is not None
        runs = open_turns(daemon)
        with locked(daemon):
            daemon.signal(signal.SIGTERM)
            anyio.run(wait_until, lambda: "turns not stored yet" in daemon.log_path.read_text())
            daemon.signal(signal.SIGTERM)
            assert daemon.process.wait(WAIT_SECONDS) == 0
    log = daemon.log_path.read_text()
    assert FORCED in log
    assert "stop complete" in log
    with daemon:
        close_turns(daemon)
    assert_each_stored_once(daemon, runs)


@pytest.mark.parametrize("signals", [1, 2])
def test_a_disk_that_is_stuck_does_not_hold_the_stop(short_folder: Path, signals: int) -> None:
    daemon = never_closing(short_folder, drain_ms="500" if signals == 1 else "600000")
    usual, daemon.command = daemon.command, [sys.executable, "-c", STUCK.format(folder=short_folder)]
    with daemon:
        assert daemon.process is not None
        runs = open_turns(daemon)
        (short_folder / "stuck").touch()
        for _ in range(signals):
            daemon.signal(signal.SIGTERM)
            anyio.run(wait_until, (short_folder / "held").exists)
        assert daemon.process.wait(WAIT_SECONDS) == 0
    log = daemon.log_path.read_text()
    assert (FORCED if signals == 2 else NOT_IN_TIME) in log
    assert "without waiting for a disk that is stuck" in log
    assert "stop complete" not in log
    daemon.command = usual
    with daemon:
        close_turns(daemon)
    assert_each_stored_once(daemon, runs)
