"""The service: its unit passes systemd's own check, is installed without harm to what a person wrote, and its messages arrive."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daemon_process import DaemonProcess
from recalld import config
from recalld.edge import service_unit
from recalld.edge.systemd import Notifier
from recalld.errors import RecalldError
from recalld.service.app import LEAVE_SECONDS

SHIPPED = Path(__file__).parents[2] / "systemd" / "recalld.service"
# systemd before 254 does not know these two, says so, and goes on; the back-off is then a constant second.
NEWER_KEYS = ("RestartSteps", "RestartMaxDelaySec")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a `recalld` where the shipped unit expects it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "RECALLD_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    executable(tmp_path / ".local/bin/recalld", "exit 0")
    return tmp_path


def executable(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def verify(unit: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed, and nothing else checks a unit")
    result = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(unit)], capture_output=True, text=True, timeout=30, check=False
    )
    said = [
        line for line in (result.stderr + result.stdout).splitlines() if not any(f"'{k}'" in line for k in NEWER_KEYS)
    ]
    assert (result.returncode, said) == (0, [])


# -- the unit


def test_the_shipped_unit_passes_systemds_check(home: Path) -> None:
    verify(SHIPPED)


def test_a_unit_for_awkward_paths_passes_systemds_check(home: Path) -> None:
    script = home / "a $b %h;c" / "recalld"
    executable(script, "exit 0")
    command = service_unit.quoted([str(script), "run", "--config", '/tmp/"quoted" \\ $HOME %h.toml'])
    assert command == f'"{str(script).replace("%", "%%")}" run --config "/tmp/\\"quoted\\" \\\\ $$HOME %%h.toml"'
    unit = home / "recalld.service"
    unit.write_text(service_unit.render(command))
    verify(unit)


def test_the_shipped_unit_is_what_the_command_prints() -> None:
    shipped = SHIPPED.read_text(encoding="utf-8")
    assert shipped == service_unit.render(service_unit.STANDARD_EXEC_START)
    printed = subprocess.run(
        [sys.executable, "-m", "recalld", "service", "print"], capture_output=True, text=True, timeout=30, check=True
    ).stdout
    start = service_unit.exec_start(None)
    assert printed == service_unit.render(start)
    assert f"ExecStart={start}\n" in printed


def test_the_unit_fits_the_daemons_defaults() -> None:
    settings = dict(
        line.split("=", 1) for line in SHIPPED.read_text().splitlines() if "=" in line and not line.startswith("#")
    )
    assert int(settings["TimeoutStopSec"]) > config.Config().drain_ms / 1000 + LEAVE_SECONDS
    runtime = config.default_runtime_dir({"XDG_RUNTIME_DIR": "/run/user/1"})
    assert runtime == f"/run/user/1/{settings['RuntimeDirectory']}"
    assert "ProtectHome" not in settings  # daily notes are written into agents' workspaces


def test_a_change_by_hand_is_seen() -> None:
    unit = service_unit.render("/usr/bin/recalld run")
    assert not service_unit.changed_by_hand(unit)
    assert service_unit.changed_by_hand(unit.replace("WatchdogSec=30", "WatchdogSec=60"))
    assert service_unit.changed_by_hand(unit + "# more\n")
    assert service_unit.changed_by_hand("[Service]\nExecStart=/usr/bin/recalld run\n")


# -- installing


@pytest.fixture
def systemctl(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that writes down how it was called."""
    calls = home / "calls"
    executable(home / "bin/systemctl", f'echo "$@" >> "{calls}"')
    monkeypatch.setenv("PATH", f"{home / 'bin'}:/usr/bin:/bin")
    return calls


def service(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "recalld", "service", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_install_change_replace_and_uninstall(home: Path, systemctl: Path) -> None:
    unit = home / ".config/systemd/user/recalld.service"
    first = service("install")
    assert first.returncode == 0, first.stderr
    assert "systemctl --user enable --now recalld" in first.stdout
    assert unit.read_text() == service_unit.render(service_unit.exec_start(None))
    assert systemctl.read_text() == "--user daemon-reload\n"

    file = home / "other.toml"
    file.write_text("")
    assert service("install", "--config", str(file)).returncode == 0  # unchanged by hand: replaced
    assert f"run --config {file}\n" in unit.read_text()

    unit.write_text(unit.read_text().replace("WatchdogSec=30", "WatchdogSec=60"))
    for command in ("install", "uninstall"):
        refused = service(command)
        assert refused.returncode == 1
        assert "changed by hand" in refused.stderr
        assert "--force" in refused.stderr
        assert "WatchdogSec=60" in unit.read_text()

    assert service("install", "--force").returncode == 0
    assert "WatchdogSec=30" in unit.read_text()
    gone = service("uninstall")
    assert gone.returncode == 0
    assert not unit.exists()
    assert systemctl.read_text().splitlines()[-2:] == ["--user disable --now recalld.service", "--user daemon-reload"]
    assert service("uninstall").stdout == "no service is installed\n"


def test_install_respects_the_configuration_home(home: Path, systemctl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "elsewhere"))
    assert service("install").returncode == 0
    assert (home / "elsewhere/systemd/user/recalld.service").exists()


def test_install_without_systemctl_says_what_to_do(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home / "empty"))
    refused = service("install")
    assert refused.returncode == 1
    assert "recalld run" in refused.stderr
    assert "recalld service print" in refused.stderr
    assert not (home / ".config").exists()


def test_install_without_a_session_says_what_is_left(home: Path, systemctl: Path) -> None:
    executable(home / "bin/systemctl", "echo 'Failed to connect to bus: No medium found' >&2; exit 1")
    result = service("install")
    assert result.returncode == 1
    assert "Failed to connect to bus" in result.stderr
    assert "systemctl --user daemon-reload" in result.stderr
    assert (home / ".config/systemd/user/recalld.service").exists()


def test_install_refuses_a_configuration_that_would_not_start(home: Path, systemctl: Path) -> None:
    file = home / "wrong.toml"
    file.write_text("nonsense = 1\n")
    assert service("install", "--config", str(file)).returncode == 2
    assert not (home / ".config").exists()


def test_a_unit_that_cannot_be_written(home: Path, systemctl: Path) -> None:
    (home / ".config").write_text("a file")
    with pytest.raises(RecalldError, match=r"recalld\.service cannot be"):
        service_unit.install("text", force=False)


# -- telling systemd


@pytest.fixture
def manager(short_folder: Path) -> tuple[socket.socket, str]:
    address = str(short_folder / "notify.sock")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(address)
    listening.settimeout(20)
    return listening, address


def test_each_message_arrives(manager: tuple[socket.socket, str]) -> None:
    listening, address = manager
    notifier = Notifier({"NOTIFY_SOCKET": address})
    with listening:
        notifier.ready("3 memories")
        assert listening.recv(4096) == b"READY=1\nSTATUS=3 memories"
        notifier.status("4 memories")
        assert listening.recv(4096) == b"STATUS=4 memories"
        notifier.alive()
        assert listening.recv(4096) == b"WATCHDOG=1"
        notifier.reloading()
        assert listening.recv(4096).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
        notifier.stopping()
        assert listening.recv(4096) == b"STOPPING=1\nSTATUS=draining"


def test_an_abstract_socket_and_none() -> None:
    name = f"recalld-test-{os.getpid()}-{time.monotonic_ns()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(20)
        Notifier({"NOTIFY_SOCKET": f"@{name}"}).alive()
        assert listening.recv(4096) == b"WATCHDOG=1"
    Notifier({"NOTIFY_SOCKET": f"@{name}"}).alive()  # nobody listens: not our trouble
    Notifier({}).alive()


def test_the_watchdog_is_fed_only_where_it_watches_us(manager: tuple[socket.socket, str]) -> None:
    listening, address = manager
    listening.close()
    env = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000"}
    assert Notifier(env).watchdog_s == 30.0
    assert Notifier({**env, "WATCHDOG_PID": str(os.getpid())}).watchdog_s == 30.0
    assert Notifier({**env, "WATCHDOG_PID": "1"}).watchdog_s is None
    assert Notifier({"NOTIFY_SOCKET": address}).watchdog_s is None


def test_a_daemons_life_as_its_manager_sees_it(short_folder: Path, manager: tuple[socket.socket, str]) -> None:
    listening, address = manager
    environ = DaemonProcess(short_folder).env
    environ |= {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"}
    with (
        listening,
        (short_folder / "log").open("wb") as log,
        subprocess.Popen([sys.executable, "-m", "recalld", "run"], env=environ, stderr=log) as process,
    ):
        try:
            until(listening, b"READY=1")
            until(listening, b"WATCHDOG=1")
            until(listening, b"STATUS=0 memories")
            process.send_signal(1)  # SIGHUP: reload
            until(listening, b"RELOADING=1")
            until(listening, b"READY=1")
            process.terminate()
            until(listening, b"STOPPING=1")
            assert process.wait(20) == 0
        except TimeoutError:
            pytest.fail((short_folder / "log").read_text())
        finally:
            process.kill()


def until(listening: socket.socket, line: bytes) -> None:
    """Read messages until one has a line that starts so; fails after the socket's time limit."""
    while not any(found.startswith(line) for found in listening.recv(4096).split(b"\n")):
        pass
