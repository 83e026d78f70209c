"""The command line where no daemon answers, or where one is in the way; its configuration."""

from __future__ import annotations

import signal
import tomllib

import pytest

import recalld
from daemon_process import DaemonProcess, cli, cli_json, one_line


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("status", "--json"),
        ("search", "x"),
        ("show", "m1"),
        ("store", "x"),
        ("forget", "m1", "-y"),
        ("toggle", "status"),
        ("tail",),
        ("explain",),
        ("replay-recall",),
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
    file.write_text(
        '[shared]\n"a b" = "home"\n[recall]\nsource_priors = { "*/old/*" = -0.1 }\n'
        '[[recall.directives]]\nwhen = { session_start = true }\nthen = { category = "rule" }\n'
    )
    shown = cli(no_daemon, "config", "show", "--config", str(file)).stdout
    assert tomllib.loads(shown)["shared"] == {"a b": "home"}
    assert tomllib.loads(shown)["data_dir"] == str(no_daemon.data_dir)
    told = cli_json(no_daemon, "config", "show", "--config", str(file))
    assert tomllib.loads(shown) == told["config"]
    assert told["origins"]["data_dir"] == "environment RECALLD_DATA_DIR"
    assert told["origins"]["shared.a b"] == f"file {file}"
    assert told["origins"]["recall.source_priors.*/old/*"] == f"file {file}"
    assert told["config"]["recall"]["directives"][0]["then"]["category"] == "rule"
    assert told["origins"]["log_level"] == "default"


def test_config_check(no_daemon: DaemonProcess) -> None:
    file = no_daemon.folder / "recalld.toml"
    file.write_text("drain_ms = 5\n")
    right = cli(no_daemon, "config", "check", str(file))
    assert right.returncode == 0
    assert f"{file}: right" in right.stdout
    assert "drain_ms" in right.stdout
    assert cli(no_daemon, "config", "check", str(no_daemon.folder / "none")).returncode == 2


@pytest.mark.parametrize("arguments", [("off",), ("on",), ("off", "--global", "--session", "x"), ("maybe", "--global")])
def test_toggle_wants_a_place_and_a_state(no_daemon: DaemonProcess, arguments: tuple[str, ...]) -> None:
    result = cli(no_daemon, "toggle", *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
