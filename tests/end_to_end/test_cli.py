"""The command line as a person and a script use it: a process of its own, against a real daemon."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import threading
import time

import recalld
from daemon_process import COMMAND, COMMAND_SECONDS, DaemonProcess, cli, cli_json, one_line
from recalld_client import SyncClient


def turn(client: SyncClient, run: str, user: str, answer: str) -> None:
    ctx = {"agent_id": "main", "session_key": "agent:main:chat", "run_id": run}
    client.emit("message_received", {"content": user}, ctx)
    client.emit("llm_output", {"assistantTexts": [answer]}, ctx)


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
    assert shown["attributes"] == {"importance": 0.5, "confidence": 1.0, "decay": "permanent"}
    attributes = ("--importance", "0.75", "--decay", "short", "--pin", "--entity", "garage")
    cli(daemon, "store", "The garage code is on the blue card", *attributes)
    given = {"importance": 0.75, "confidence": 1.0, "decay": "short", "pinned": True, "entity": "garage"}
    assert cli_json(daemon, "show", "1")["attributes"] == given
    text = cli(daemon, "show", "m1").stdout
    assert "The garage code is on the blue card" in text
    assert "importance  0.75" in text
    refused = cli(daemon, "store", "x", "--decay", "slow")
    assert refused.returncode == 8
    assert "decay" in one_line(refused)

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
        timeout=COMMAND_SECONDS,
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
            process.wait(COMMAND_SECONDS)
        os.close(ours)
        return text.decode()

    assert "blue card" in answered("n")
    assert cli(daemon, "show", "m1").returncode == 0
    assert "forgotten: m1" in answered("y")
    assert cli(daemon, "show", "m1").returncode == 8


def test_status(daemon: DaemonProcess) -> None:
    with SyncClient("gateway", daemon.runtime_dir) as client:
        assert client.ready(COMMAND_SECONDS)
        turn(client, "r1", "My boat is called Aurora and lies in Lisbon.", "A beautiful name!")
        turn(client, "r2", "/help", "ok")
        assert client.flush(COMMAND_SECONDS)
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
        assert client.ready(COMMAND_SECONDS)
        number = 0
        deadline = time.monotonic() + COMMAND_SECONDS
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
        return self._process.wait(COMMAND_SECONDS)

    def errors(self) -> str:
        return self._errors

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._thread.join(COMMAND_SECONDS)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._errors = self._process.stderr.read()
        self._process.stdout.close()
        self._process.stderr.close()


def test_toggle(daemon: DaemonProcess) -> None:
    session = ("--session", "agent:main:chat")
    assert cli_json(daemon, "toggle", "status") == {"global": "on"}
    assert cli_json(daemon, "toggle", "off", *session) == {"global": "on", "session": "off"}
    assert cli(daemon, "toggle", "status", *session).stdout == (
        "memory is on everywhere\nmemory is off in agent:main:chat\n"
    )
    with SyncClient("test", daemon.runtime_dir) as client:
        assert client.ready(10)
        turn(client, "r1", "My safe is blue.", "I see.")
        assert client.flush(10)
        client.drain(timeout_s=COMMAND_SECONDS)
        ctx = {"agent_id": "main", "session_key": "agent:main:chat"}
        assert client.recall("What colour is my safe?", ctx, ttl_ms=5_000).reason == "toggled_off"
    status = cli_json(daemon, "status")
    assert status["agents"]["main"]["skipped"] == {"toggled_off": 1}
    assert status["recalls"]["skipped:toggled_off"] == 1
    daemon.kill()
    daemon.start()
    assert cli_json(daemon, "toggle", "status", *session) == {"global": "on", "session": "off"}
    assert cli_json(daemon, "toggle", "on", *session) == {"global": "on", "session": "on"}
    assert cli_json(daemon, "toggle", "off", "--global") == {"global": "off"}
    assert cli(daemon, "toggle", "status", *session).stdout == (
        "memory is off everywhere\nmemory is on in agent:main:chat, once it is on everywhere\n"
    )
