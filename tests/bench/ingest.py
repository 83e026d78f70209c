"""How many events a second reach the disk with an acknowledgement, and how soon a daemon is ready."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import msgspec

from bench import floors
from bench.figures import emit, middle, spread
from bench.recall import Sizes
from bench.seed import seeded
from bench.texts import NAMESPACE, Texts, turn_events
from daemon_process import DaemonProcess
from recalld.core.scope import scope_of
from recalld.core.signals import distil
from recalld.wire.codec import decode_event
from recalld_client import Client
from recalld_client.buffer import EVENTS_MAX
from recalld_client.messages import event_body

SESSIONS = 20
RATE_TARGET = ">= 3000"
START_TARGET_S = "<= 2"
EMIT_SECONDS_MAX = 300  # a daemon that died acknowledges nothing
BURST = 64  # events emitted between two turns of the client's loop


async def ingest(sizes: Sizes) -> None:
    """Turns of three events into an empty store, as fast as they are acknowledged."""
    texts = Texts(seed=4)
    exchanges = [texts.exchange() for _ in range(sizes.events // 3)]
    events = [e for n, x in enumerate(exchanges) for e in turn_events(x, f"ingest-{n % SESSIONS}", f"i{n}")]
    rates, drains, commits, streams = [], [], [], []
    lost = unstored = 0
    for _ in range(sizes.repeats):
        with tempfile.TemporaryDirectory(prefix="recalld-") as name:
            folder = Path(name)
            with DaemonProcess(folder) as daemon:
                async with Client("ingest", daemon.runtime_dir) as client:
                    assert await client.ready(10)
                    started = time.perf_counter()
                    await _emit_all(client, events)
                    acknowledged = time.perf_counter()
                    await client.drain(timeout_s=600)
                    drains.append(time.perf_counter() - acknowledged)
                    rates.append(len(events) / (acknowledged - started))
                    lost += client.lost
                    unstored += len(exchanges) - (await client.status())["agents"][NAMESPACE]["captured"]
            row_bytes, message_bytes = _sizes(events[:300])
            commits.append(floors.group_commits(folder, len(events), row_bytes))
            streams.append(floors.bus_stream(folder, len(events), message_bytes))
    n = len(events)
    emit("ingest", "floor: group commits", middle(commits), "rows/s", spread=spread(commits), row_bytes=row_bytes)
    emit("ingest", "floor: bus", middle(streams), "messages/s", spread=spread(streams), message_bytes=message_bytes)
    emit(
        "ingest",
        "acknowledged on disk",
        middle(rates),
        "events/s",
        target=RATE_TARGET,
        floor=middle(commits),
        spread=spread(rates),
        n=n,
        lost=lost,
    )
    emit(
        "ingest",
        "last acknowledgement to all findable",
        middle(drains),
        "s",
        spread=spread(drains),
        n=len(exchanges),
        unstored=unstored,
    )


async def _emit_all(client: Client, events: list[tuple[str, dict[str, object], dict[str, object]]]) -> None:
    async with asyncio.timeout(EMIT_SECONDS_MAX):
        for first in range(0, len(events), BURST):
            # one more would push the oldest out; the client tells only when nothing is pending at all
            while client.pending > EVENTS_MAX - BURST:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            for type, event, ctx in events[first : first + BURST]:
                client.emit(type, event, ctx)
            await asyncio.sleep(0)
        assert await client.flush(EMIT_SECONDS_MAX)


def _sizes(events: list[tuple[str, dict[str, object], dict[str, object]]]) -> tuple[int, int]:
    """Mean bytes of a journal row, and of a message."""
    rows = messages = 0
    for type, payload, ctx in events:
        head = b'{"v":1,"id":"e10000","seq":10000,"src":"ingest-00000000","ts":1750000000000,'
        message = head + event_body(type, payload, ctx)
        event, _ = decode_event(message)
        signal = distil(event, scope_of(event.ctx, {}), 1_750_000_000_000)
        rows += len(msgspec.msgpack.encode(signal))
        messages += len(message)
    return rows // len(events), messages // len(events)


async def start(sizes: Sizes) -> None:
    """From the start of the process to READY=1, with a good snapshot and a warm page cache."""
    with tempfile.TemporaryDirectory(prefix="recalld-") as name:
        folder = Path(name)
        await seeded(sizes.memories, folder / "data")
        ready, bare = [], []
        for _ in range(sizes.starts):
            started = time.perf_counter()
            with DaemonProcess(folder):
                ready.append(time.perf_counter() - started)
            bare.append(floors.bare_start())
    emit("start", "floor: imports and weights", middle(bare), "s", spread=spread(bare), n=len(bare))
    target = START_TARGET_S if sizes.memories == 100_000 else None
    emit("start", "ready", middle(ready), "s", target=target, floor=middle(bare), spread=spread(ready), n=len(ready))
