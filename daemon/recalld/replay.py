"""Recorded events played to a running daemon, as the gateways that they come from would publish them."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

from msgspec import Struct, field

from recalld.edge.recordings import Recorded, read
from recalld.errors import NotRunningError
from recalld.wire.messages import QUESTION
from recalld_client import Client

READY_SECONDS = 5.0
STALL_SECONDS = 30.0  # without a single acknowledgement: a daemon on a slow disk still manages one
PENDING_MAX = 256  # unacknowledged; far below the client's buffer, in events and, at 160 kB each, in bytes
POLL_SECONDS = 0.05
MARGIN_MS = 200  # for an answer beyond its budget: the daemon counts its own lateness, and this process may be slow too
GAP_MS_MAX = 60_000  # of a recorded silence: it exceeds every timer of a running turn, and nobody waits for weeks

Told = Callable[[int, int], None]


class ReplayResult(Struct):
    """What was played: events and questions by type and by status. `lost` events the client had to give up."""

    files: int = 0
    lives: int = 0
    events: Counter[str] = field(default_factory=Counter)
    questions: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    lost: int = 0

    def summary(self) -> str:
        """For people."""
        lines = [
            f"{self.events.total()} events of {self.files} files, {self.lives} publishers:"
            f" {self.acknowledged} acknowledged, {self.lost} lost",
            *(f"  {count:6} {name}" for name, count in self.events.most_common()),
        ]
        if self.questions:
            lines.append("answers to questions: " + ", ".join(f"{n} {s}" for s, n in self.questions.most_common()))
        return "\n".join(lines)


@contextmanager
def progress_bar() -> Iterator[Told | None]:
    """A bar on standard error where a person looks, else nothing."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("replay"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replay", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


async def replay(
    paths: Sequence[Path],
    *,
    runtime_dir: Path,
    speed: float,
    agent: str | None = None,
    progress: Told | None = None,
) -> ReplayResult:
    """Play files one after the other. Returns when everything is acknowledged.

    `speed` divides the recorded gaps; 0 plays as fast as the daemon acknowledges. `agent` plays everything as that
    agent. `progress` is given (events done, events in all). Raises FolderError for a file that is no recording,
    before anything is played, and NotRunningError where no daemon answers, or none any more.
    """
    if speed < 0:
        raise ValueError("speed is not negative")
    recordings = [await asyncio.to_thread(read, path, agent) for path in paths]
    result, total = ReplayResult(files=len(recordings)), sum(map(len, recordings))

    def step() -> None:
        if progress is not None:
            progress(result.events.total(), total)

    for recording in recordings:
        pace = _Pace(speed)
        for _, events in groupby(recording, key=lambda e: e.life):
            await _play(events, pace, runtime_dir, result, step)
    return result


async def _play(
    events: Iterable[Recorded], pace: _Pace, runtime_dir: Path, result: ReplayResult, step: Callable[[], None]
) -> None:
    """One publisher's life."""
    result.lives += 1
    kept = 0
    async with Client("replay", runtime_dir, margin_ms=MARGIN_MS) as client:
        if not await client.ready(READY_SECONDS):
            raise NotRunningError(f"no daemon answers in {runtime_dir}: start it with `recalld run`")
        for recorded in events:
            await pace.wait(recorded.ts)
            if recorded.type == QUESTION:
                await _ask(client, recorded, result, ordered=pace.speed == 0)
            else:
                await _settle(client, PENDING_MAX)
                client.emit(recorded.type, recorded.event, recorded.ctx, ts=recorded.ts)
                kept += 1
            result.events[recorded.type] += 1
            step()
        await _settle(client, 0)
        result.lost += client.lost
        result.acknowledged += kept - client.lost


async def _ask(client: Client, recorded: Recorded, result: ReplayResult, *, ordered: bool) -> None:
    if ordered:  # without the recorded gaps a question would overtake what waits for the disk
        await _settle(client, 0)
    prompt, messages = recorded.event.get("prompt"), recorded.event.get("messages")
    answer = await client.recall(
        prompt if isinstance(prompt, str) else "",
        recorded.ctx,
        messages=messages if isinstance(messages, list) else None,
        ts=recorded.ts,
    )
    result.questions[answer.status] += 1


async def _settle(client: Client, pending_max: int) -> None:
    """Wait until at most `pending_max` events are unacknowledged. Raises NotRunningError after STALL_SECONDS of none."""
    clock = asyncio.get_running_loop().time
    pending, since = client.pending, clock()
    while client.pending > pending_max:
        await client.flush(POLL_SECONDS)
        if client.pending != pending:
            pending, since = client.pending, clock()
        elif clock() - since > STALL_SECONDS:
            raise NotRunningError(
                f"the daemon has acknowledged nothing for {STALL_SECONDS:.0f} s: see `recalld status` and its log"
            )


class _Pace:
    """The recorded rhythm. Absolute: what took longer than recorded is caught up with."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self._last_ts: int | None = None
        self._due = 0.0

    async def wait(self, ts: int) -> None:
        if self.speed == 0:
            return
        clock = asyncio.get_running_loop().time
        if self._last_ts is None:
            self._due = clock()
        else:
            self._due += min(max(ts - self._last_ts, 0), GAP_MS_MAX) / 1000 / self.speed
        self._last_ts = ts
        await asyncio.sleep(max(0.0, self._due - clock()))
