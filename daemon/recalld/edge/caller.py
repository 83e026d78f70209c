"""Talking to the daemon from the command line: the Python client, with its errors as ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

import recalld_client
from recalld.config import Config
from recalld.edge.nng import Tap
from recalld.errors import BusError, NotRunningError, RefusedError
from recalld_client import SyncClient

CALL_SECONDS = 5.0


@contextmanager
def daemon(runtime_dir: Path) -> Iterator[SyncClient]:
    """A client of the daemon that listens in `runtime_dir`. Raises NotRunningError and RefusedError from what is called."""
    try:
        with SyncClient("recalld-cli", runtime_dir, timeout_s=CALL_SECONDS, close_timeout_s=0.1) as client:
            yield client
    except recalld_client.RecalldUnavailable as e:
        raise NotRunningError(not_running(runtime_dir, e)) from None
    except recalld_client.RecalldError as e:
        raise RefusedError(f"{e.message} ({e.code})" + (f": {e.remedy}" if e.remedy else "")) from None


def not_running(runtime_dir: Path, error: recalld_client.RecalldUnavailable) -> str:
    """What to tell a person, by why there was no answer."""
    if isinstance(error.__cause__, TimeoutError):
        return (
            f"the daemon in {runtime_dir} does not answer ({error.message}): `journalctl --user -u recalld` shows its log,"
            " `systemctl --user restart recalld` starts it anew"
        )
    return _absent(runtime_dir)


def _absent(runtime_dir: Path) -> str:
    return (
        f"no daemon answers in {runtime_dir}: start it with `systemctl --user start recalld` or `recalld run`;"
        " if it runs, give this command the same runtime_dir"
    )


@contextmanager
def heard(config: Config) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
    """What the daemon publishes on `context`, as (topic, message), without end. Raises NotRunningError."""
    try:
        tap = Tap(config.address("context"))
    except BusError:
        raise NotRunningError(_absent(config.runtime_path)) from None

    def messages() -> Iterator[tuple[str, dict[str, Any]]]:
        while True:
            if (received := tap.next()) is not None:
                topic, data = received
                decode = msgspec.json.decode if data.startswith(b"{") else msgspec.msgpack.decode
                yield topic, decode(data, type=dict[str, Any])

    try:
        yield messages()
    finally:
        tap.close()
