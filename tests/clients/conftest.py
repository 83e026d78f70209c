"""Fixtures of the client's tests."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from .fake_daemon import FakeDaemon


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    # Not tmp_path: the path of a Unix socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="recalld-") as folder:
        yield Path(folder)


@pytest.fixture
async def fake(anyio_backend: str, runtime_dir: Path) -> AsyncIterator[FakeDaemon]:
    daemon = FakeDaemon(runtime_dir)
    await daemon.start()
    yield daemon
    await daemon.stop()


@pytest.fixture
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recalld_client.buffer.PAUSE_S", 0.1)
