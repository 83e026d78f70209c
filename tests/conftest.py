"""Fixtures shared by all tests: a real daemon in a temporary folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon_process import DaemonProcess


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A temporary folder whose path is short enough for a socket's address."""
    with tempfile.TemporaryDirectory(prefix="recalld-") as name:
        yield Path(name)


@pytest.fixture
def daemon(short_folder: Path) -> Iterator[DaemonProcess]:
    """A running daemon with short turn timers."""
    with DaemonProcess(short_folder, turns__quiet_ms="300", turns__grace_ms="50", index__commit_ms="20") as process:
        yield process


@pytest.fixture
def no_daemon(short_folder: Path) -> DaemonProcess:
    """The environment of a daemon that was never started."""
    return DaemonProcess(short_folder)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
