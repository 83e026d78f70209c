"""The command line as a person and a script use it: a process of its own, against a real daemon or none."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import recalld
from daemon_process import DaemonProcess
from recalld_client import SyncClient

COMMAND = [sys.executable, "-m", "recalld"]
SECONDS = 25.0


def cli(process: DaemonProcess, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the daemon's environment, connected to no terminal."""
    return subprocess.run(
        [*COMMAND, *arguments],
        env={**process.env, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def cli_json(process: DaemonProcess, *arguments: str) -> Any:
    result = cli(process, *arguments, "--json")
    assert result.returncode in (0, 1), result.stderr
    return json.loads(result.stdout)


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    """The single line on standard error that says what is wrong."""
    lines = [line for line in result.stderr.splitlines() if line.startswith("recalld: ")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return lines[0]


def turn(client: SyncClient, run: str, user: str, answer: str) -> None:
    ctx = {"agent_id": "main", "session_key": "agent:main:chat", "run_id": run}
    client.emit("message_received", {"content": user}, ctx)
    client.emit("llm_output", {"assistantTexts": [answer]}, ctx)


@pytest.fixture
def no_daemon(short_folder: Path) -> DaemonProcess:
    """The environment of a daemon that was never started."""
    return DaemonProcess(short_folder)


# -- against a daemon


def test_remember_find_show_and_forget(daemon: DaemonProcess) -> None:
    stored = cli_json(daemon, "store", "The garage code is on the blue card", "--category", "home")
    assert stored == {"id": "m1", "stored": True}
    again = cli(daemon, "store", "The garage code is on the blue card")
    assert (again.returncode, again.stdout) == (0, "m1 holds the same text already\n")

    found = cli_json(daemon, "search", "garage code")
    assert [m["id"] for m in found["memories"]] == ["m1"]
    assert cli_json(daemon, "search", "garage code", "--agent", "other")["memories"] == []
    assert cli(daemon, "search", "garage", "--agent", "other").stdout == "nothing found\n"
    plain = cli(daemon, "search", "garage code").stdout
    assert plain.startswith("m1 ")
    assert "note/home" in plain
    assert "\x1b" not in plain

    shown = cli_json(daemon, "show", "1")
    assert shown["memory"]["text"] == "The garage code is on the blue card"
    assert "The garage code is on the blue card" in cli(daemon, "show", "m1").stdout

    unasked = cli(daemon, "forget", "m1")
    assert unasked.returncode == 1
    assert "--yes" in one_line(unasked)
    assert cli_json(daemon, "forget", "m1", "--yes") == {"forgotten": ["m1"]}
    gone = cli(daemon, "show", "m1")
    assert gone.returncode == 8
    assert "E_NOT_FOUND" in one_line(gone)
    assert cli(daemon, "show", "nonsense").returncode == 8


def test_a_long_text_in_a_pipe_is_one_line(daemon: DaemonProcess) -> None:
    cli(daemon, "store", "The garden needs water, " + "and every rose wants some of its own, " * 30)
    lines = cli(daemon, "search", "garden").stdout.splitlines()
    assert len(lines) == 1
    assert not lines[0].endswith(" ")


def test_text_from_standard_input(daemon: DaemonProcess) -> None:
    result = subprocess.run(
        [*COMMAND, "store", "-"],
        env=daemon.env,
        input="The spare key is under the fern\n",
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert result.stdout == "m1 stored\n"


def test_what_is_stored_cannot_command_the_terminal(daemon: DaemonProcess) -> None:
    cli(daemon, "store", "a note with \x1b[31m colour, [bold]markup[/bold] and a bell \x07 in it")
    for arguments in (("search", "note with colour"), ("show", "m1")):
        shown = cli(daemon, *arguments, FORCE_COLOR="1").stdout
        assert "\x1b[31m" not in shown
        assert "\x07" not in shown
        assert "[bold]markup[/bold]" in shown


def test_forget_asks_a_person(daemon: DaemonProcess) -> None:
    cli(daemon, "store", "The garage code is on the blue card")

    def answered(answer: str) -> str:
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            [*COMMAND, "forget", "m1"], env=daemon.env, stdin=theirs, stdout=theirs, stderr=theirs
        ) as process:
            os.close(theirs)
            os.write(ours, f"{answer}\n".encode())
            text = b""
            try:
                while part := os.read(ours, 4096):
                    text += part
            except OSError:  # how a pseudo-terminal says that its other side is gone
                pass
            process.wait(SECONDS)
        os.close(ours)
        return text.decode()

    assert "blue card" in answered("n")
    assert cli(daemon, "show", "m1").returncode == 0
    assert "forgotten: m1" in answered("y")
    assert cli(daemon, "show", "m1").returncode == 8


def test_status(daemon: DaemonProcess) -> None:
    with SyncClient("gateway", daemon.runtime_dir) as client:
        assert client.ready(SECONDS)
        turn(client, "r1", "My boat is called Aurora and lies in Lisbon.", "A beautiful name!")
        turn(client, "r2", "/help", "ok")
        assert client.flush(SECONDS)
        assert client.drain()["closed"] >= 1
        ctx = {"agent_id": "main", "session_key": "agent:main:other"}
        assert client.recall("What is my boat called?", ctx, ttl_ms=5_000).status == "ok"

    status = cli_json(daemon, "status")
    agent = status["agents"]["main"]
    assert (agent["seen"], agent["captured"], agent["skipped"]) == (2, 1, {"control_text": 1})
    assert status["recalls"] == {"ok": 1}
    assert status["faults"] == []

    text = cli(daemon, "status").stdout
    assert f"recalld {recalld.__version__}" in text
    for word in ("main", "control_text 1", "ok 1", "p99", "late", "message_received 2"):
        assert word in text
    assert "\x1b" not in text


def test_tail_shows_what_happens_until_it_is_interrupted(daemon: DaemonProcess) -> None:
    with (
        Listener(daemon, "tail") as people,
        Listener(daemon, "tail", "--json") as programs,
        SyncClient("gateway", daemon.runtime_dir) as client,
    ):
        assert client.ready(SECONDS)
        number = 0
        deadline = time.monotonic() + SECONDS
        # A subscriber hears what comes after it; which turn is the first that both hear is open.
        while not (people.heard("  captured  ") and programs.heard('"captured"')) and time.monotonic() < deadline:
            number += 1
            turn(client, f"r{number}", f"Boat number {number} lies in Lisbon.", "Noted.")
            client.drain()
            time.sleep(0.1)
        assert people.interrupted() == 0
        assert programs.interrupted() == 0
    line = next(line for line in people.lines if "  captured  " in line)
    assert f"  {client.src}  captured  captured turn " in line
    assert "of agent:main:chat" in line
    message = next(m for m in map(json.loads, programs.lines) if m["type"] == "captured")
    assert message["src"] == client.src
    assert people.errors() == programs.errors() == ""


class Listener:
    """A command that goes on until it is interrupted."""

    def __init__(self, process: DaemonProcess, *arguments: str) -> None:
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [*COMMAND, *arguments], env=process.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.lines.extend(iter(self._process.stdout.readline, ""))

    def heard(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    def interrupted(self) -> int:
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(SECONDS)

    def errors(self) -> str:
        return self._errors

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._thread.join(SECONDS)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._errors = self._process.stderr.read()
        self._process.stdout.close()
        self._process.stderr.close()


# -- without a daemon


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("status", "--json"),
        ("search", "x"),
        ("show", "m1"),
        ("store", "x"),
        ("forget", "m1", "-y"),
        ("tail",),
    ],
)
def test_without_a_daemon_every_command_says_so(no_daemon: DaemonProcess, arguments: tuple[str, ...]) -> None:
    result = cli(no_daemon, *arguments)
    assert result.returncode == 7
    assert result.stdout == ""
    line = one_line(result)
    assert str(no_daemon.runtime_dir) in line
    assert "systemctl --user start recalld" in line
    assert "recalld run" in line


def test_a_daemon_that_hangs_is_not_called_absent(daemon: DaemonProcess) -> None:
    daemon.signal(signal.SIGSTOP)
    try:
        result = cli(daemon, "status")
    finally:
        daemon.signal(signal.SIGCONT)
    assert result.returncode == 7
    assert "does not answer" in one_line(result)


def test_a_second_daemon_on_the_same_folder(daemon: DaemonProcess) -> None:
    assert daemon.process is not None
    second = cli(daemon, "run", "--runtime-dir", str(daemon.folder / "other"))
    assert second.returncode == 4
    assert f"pid {daemon.process.pid}" in one_line(second)
    assert str(daemon.data_dir) in one_line(second)


def test_a_second_daemon_on_the_same_sockets(daemon: DaemonProcess) -> None:
    second = cli(daemon, "run", "--data-dir", str(daemon.folder / "other"))
    assert second.returncode == 4
    assert str(daemon.runtime_dir) in one_line(second)
    assert cli(daemon, "status").returncode == 0  # the first one did not notice


@pytest.mark.parametrize("key", ["data", "runtime"])
def test_a_folder_that_cannot_be_made(no_daemon: DaemonProcess, key: str) -> None:
    file = no_daemon.folder / "file"
    file.write_text("")
    result = cli(no_daemon, "run", f"--{key}-dir", str(file / "below"))
    assert result.returncode == 3
    assert f"{key}_dir {file / 'below'}" in one_line(result)


def test_version_help_and_mistakes(no_daemon: DaemonProcess) -> None:
    assert cli(no_daemon, "--version").stdout == f"recalld {recalld.__version__}\n"
    assert "doctor" in cli(no_daemon, "--help").stdout
    mistyped = cli(no_daemon, "stats")
    assert mistyped.returncode == 2
    assert "Did you mean 'status'?" in mistyped.stderr
    mistyped = cli(no_daemon, "status", "--jsn")
    assert mistyped.returncode == 2
    assert "--json" in mistyped.stderr


# -- configuration


def test_an_unknown_key_stops_every_command(no_daemon: DaemonProcess) -> None:
    file = no_daemon.folder / "recalld.toml"
    file.write_text("[recall]\nflor = 1\n")
    for arguments in (("run",), ("status",), ("config", "show"), ("config", "check")):
        result = cli(no_daemon, *arguments, "--config", str(file))
        assert result.returncode == 2
        assert "`recall.flor`" in one_line(result)
        assert "did you mean `recall.floor`?" in one_line(result)


def test_config_show_is_toml_and_tells_origins(no_daemon: DaemonProcess) -> None:
    file = no_daemon.folder / "recalld.toml"
    file.write_text('[shared]\n"a b" = "home"\n')
    shown = cli(no_daemon, "config", "show", "--config", str(file)).stdout
    assert tomllib.loads(shown)["shared"] == {"a b": "home"}
    assert tomllib.loads(shown)["data_dir"] == str(no_daemon.data_dir)
    told = cli_json(no_daemon, "config", "show", "--config", str(file))
    assert tomllib.loads(shown) == told["config"]
    assert told["origins"]["data_dir"] == "environment RECALLD_DATA_DIR"
    assert told["origins"]["shared.a b"] == f"file {file}"
    assert told["origins"]["log_level"] == "default"


def test_config_check(no_daemon: DaemonProcess) -> None:
    file = no_daemon.folder / "recalld.toml"
    file.write_text("drain_ms = 5\n")
    right = cli(no_daemon, "config", "check", str(file))
    assert right.returncode == 0
    assert f"{file}: right" in right.stdout
    assert "drain_ms" in right.stdout
    assert cli(no_daemon, "config", "check", str(no_daemon.folder / "none")).returncode == 2


# -- doctor


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
    deadline = time.monotonic() + SECONDS
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
