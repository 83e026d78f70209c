"""A real daemon of a test's own, in a folder of its own, and the command line beside it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

START_SECONDS = 30.0
COMMAND = [sys.executable, "-m", "recalld"]
COMMAND_SECONDS = 25.0


class DaemonProcess:
    """A daemon of its own: `start`, `stop` (SIGTERM), `kill` (SIGKILL). Settings are `RECALLD_` environment variables."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.runtime_dir = folder / "run"
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("RECALLD_")},
            "RECALLD_DATA_DIR": str(self.data_dir),
            "RECALLD_RUNTIME_DIR": str(self.runtime_dir),
            "RECALLD_NOTES__PLACE": "data",
            "HOME": str(folder),
            **{f"RECALLD_{k.upper()}": v for k, v in settings.items()},
        }
        self.command = [*COMMAND, "run"]
        self.process: subprocess.Popen[bytes] | None = None
        self.log_path = folder / "daemon.log"

    def start(self) -> DaemonProcess:
        """Return when the daemon is ready."""
        notify = self.folder / "notify.sock"
        notify.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.bind(str(notify))
            s.settimeout(0.2)
            with self.log_path.open("ab") as log:
                self.process = subprocess.Popen(
                    self.command,
                    env={**self.env, "NOTIFY_SOCKET": str(notify)},
                    stderr=log,
                    stdout=log,
                )
            deadline = time.monotonic() + START_SECONDS
            while time.monotonic() < deadline:
                try:
                    if b"READY=1" in s.recv(4096):
                        return self
                except TimeoutError:
                    if self.process.poll() is not None:
                        break
        raise AssertionError(f"the daemon did not start:\n{self.log_path.read_text()}")

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        return self.process.wait(timeout=30)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> DaemonProcess:
        return self.start()

    def __exit__(self, *exc_info: Any) -> None:
        if self.process is not None and self.process.poll() is None:
            try:
                self.stop()
            finally:
                self.kill()


async def wait_until(condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
    """Return when the condition holds; fail if it does not in time."""
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110  (conditions of other processes have no event)
            await anyio.sleep(0.01)


def cli(process: DaemonProcess, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the daemon's environment, connected to no terminal."""
    return subprocess.run(
        [*COMMAND, *arguments],
        env={**process.env, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
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
