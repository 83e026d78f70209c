"""`recalld doctor`: what it finds, and what it repairs."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon_process import COMMAND_SECONDS, DaemonProcess, cli, cli_json, one_line


def outcomes(process: DaemonProcess, *arguments: str) -> dict[str, tuple[str, str]]:
    report = cli_json(process, "doctor", *arguments)
    checks = report["checks"]
    assert report["ok"] == all(c["outcome"] != "fail" for c in checks)
    for check in checks:
        assert check["outcome"] == "ok" or check["remedy"], check
    return {c["name"]: (c["outcome"], c["detail"]) for c in checks}


def test_doctor_where_nothing_is_yet(no_daemon: DaemonProcess) -> None:
    found = outcomes(no_daemon)
    assert {name: outcome for name, (outcome, _) in found.items() if outcome != "ok"}.keys() <= {"daemon", "service"}
    assert found["daemon"][0] == "warn"
    assert not no_daemon.data_dir.exists()
    assert not no_daemon.runtime_dir.exists()


def test_doctor_with_a_daemon(daemon: DaemonProcess) -> None:
    cli(daemon, "store", "The garage code is on the blue card")
    found = outcomes(daemon)
    assert not [name for name, (outcome, _) in found.items() if outcome == "fail"]
    assert found["daemon"][0] == "ok"
    assert found["sockets"] == ("ok", "events.ipc, context.ipc, rpc.ipc; only for you")
    text = cli(daemon, "doctor")
    assert text.returncode == 0
    assert "\x1b" not in text.stdout
    refused = cli(daemon, "doctor", "--repair")
    assert refused.returncode == 4
    assert "systemctl --user stop recalld" in one_line(refused)


def test_doctor_sees_what_others_could_open(daemon: DaemonProcess) -> None:
    daemon.data_dir.chmod(0o755)
    (daemon.runtime_dir / "rpc.ipc").chmod(0o666)
    found = outcomes(daemon)
    assert found["data folder"][0] == "warn"
    assert found["sockets"][0] == "fail"


def test_a_fault_is_shown_by_status_and_doctor(daemon: DaemonProcess) -> None:
    usual = daemon.folder / ".config/recalld/recalld.toml"
    usual.parent.mkdir(parents=True)
    usual.write_text("[recall]\nflor = 1\n")
    daemon.signal(signal.SIGHUP)
    good = daemon.folder / "good.toml"
    good.write_text("")
    deadline = time.monotonic() + COMMAND_SECONDS
    while not cli_json(daemon, "status", "--config", str(good))["faults"] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "fault: configuration: not reloaded" in cli(daemon, "status", "--config", str(good)).stdout
    assert outcomes(daemon, "--config", str(good))["fault"][0] == "fail"
    assert cli(daemon, "doctor", "--config", str(good)).returncode == 1


def damage_words(index: Path) -> Path:
    segment = max((index / "lexical").glob("*.store"))
    segment.write_bytes(b"x" + segment.read_bytes()[1:])
    return index / "lexical"


def damage_state(index: Path) -> Path:
    (index / "lexical/state.json").write_text("nonsense")
    return index / "lexical"


def lose_documents(index: Path) -> Path:
    state = json.loads((index / "lexical/state.json").read_text())
    (index / "lexical/state.json").write_text(json.dumps({**state, "memory_id": 1}))
    return index / "lexical"


def damage_snapshot(index: Path) -> Path:
    (index / "vectors").mkdir()
    (index / "vectors/snapshot.json").write_text("{}")
    return index / "vectors"


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("words of main", damage_words),
        ("words of main", damage_state),
        ("words of main", lose_documents),
        ("vectors of main", damage_snapshot),
    ],
)
def test_doctor_finds_and_repairs_an_index(daemon: DaemonProcess, name: str, damage: Callable[[Path], Path]) -> None:
    cli(daemon, "store", "The garage code is on the blue card")
    cli(daemon, "store", "The spare key is under the fern")
    daemon.stop()
    assert outcomes(daemon)["words of main"] == ("ok", "2 memories, as in the record")
    folder = damage(next((daemon.data_dir / "index").iterdir()))

    assert outcomes(daemon)[name][0] == "fail"
    assert folder.exists()  # looking changes nothing
    assert outcomes(daemon, "--repair")[name][0] == "warn"
    assert not folder.exists()
    daemon.start()
    assert cli_json(daemon, "search", "garage code")["memories"][0]["text"] == "The garage code is on the blue card"


def test_doctor_follows_what_was_forgotten(daemon: DaemonProcess) -> None:
    for text in ("The garage code is on the blue card", "The spare key is under the fern", "Roses like water"):
        cli(daemon, "store", text)
    cli(daemon, "forget", "m2", "--yes")
    daemon.stop()
    assert outcomes(daemon)["words of main"] == ("ok", "2 memories, as in the record")


def test_doctor_with_a_damaged_database(daemon: DaemonProcess) -> None:
    cli(daemon, "store", "The garage code is on the blue card")
    daemon.stop()
    database = daemon.data_dir / "recalld.db"
    for suffix in ("-wal", "-shm"):
        database.with_name(f"recalld.db{suffix}").unlink(missing_ok=True)
    database.write_bytes(b"\x5a" * 8192)
    index = next((daemon.data_dir / "index").iterdir())
    found = outcomes(daemon, "--repair")
    assert found["database"][0] == "fail"
    assert index.exists()  # nothing to compare it with, so it stays
    assert database.read_bytes() == b"\x5a" * 8192
    assert cli(daemon, "run").returncode == 5


def test_doctor_with_a_newer_database(daemon: DaemonProcess) -> None:
    daemon.stop()
    with sqlite3.connect(daemon.data_dir / "recalld.db") as db:
        db.execute("INSERT INTO migrations VALUES (999, 'x')")
    db.close()
    assert outcomes(daemon)["schema"][0] == "fail"


def test_doctor_with_folders_that_cannot_be(no_daemon: DaemonProcess) -> None:
    no_daemon.data_dir.write_text("a file")
    shutil.rmtree(no_daemon.runtime_dir, ignore_errors=True)
    no_daemon.runtime_dir.mkdir(mode=0o700)
    (no_daemon.runtime_dir / "rpc.ipc").write_text("a file")
    found = outcomes(no_daemon)
    assert found["data folder"][0] == "fail"
    assert found["sockets"][0] == "fail"


def test_doctor_with_a_wrong_configuration(no_daemon: DaemonProcess) -> None:
    no_daemon.env["RECALLD_ZZZ"] = "1"
    assert list(outcomes(no_daemon)) == ["configuration"]
