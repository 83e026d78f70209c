"""Whether a prompt gets its memories in time whatever else the machine is made to do: one disturbance after the other,
each while questions are asked with a deadline of 50 ms."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

from bench.figures import emit, summary
from bench.recall import CTX, Sizes, captures_into, prompts_of
from bench.seed import seeded
from bench.texts import Texts
from daemon_process import DaemonProcess
from recalld_client import Client

TTL_MS = 50
CAPTURES_PER_SECOND = 200
TOGETHER = 64
NOTES = 5_000
WARM_UP = 200
FAST_COMMIT_MS = "10"  # a hundred small segments a second: the word index merges all the time

Attack = Callable[[DaemonProcess, Client], AbstractAsyncContextManager[None]]


async def attacks(sizes: Sizes) -> None:
    """At the given size and at ten times that."""
    for memories in (sizes.memories, sizes.memories * 10):
        await attack(memories, sizes.attacked)


async def attack(memories: int, questions: int) -> None:
    """One store, every attack on it."""
    bench = f"attack-{memories}"
    prompts = prompts_of(questions, memories)
    with tempfile.TemporaryDirectory(prefix="recalld-") as name:
        folder = Path(name)
        emit("seed", f"{memories}", await seeded(memories, folder / "data"), "s")
        with DaemonProcess(folder) as daemon:
            floor = 0.0
            for disturb in (undisturbed, captures, words_made_anew, snapshot, backup, notes):
                waited = await _ask(daemon, prompts, disturb)
                floor = floor or waited.p50
                target = "<= 8, p99 <= 25" if disturb is undisturbed and memories == 1_000_000 else None
                waited.report(bench, disturb.__name__, floor, target)
            (await _ask(daemon, prompts, undisturbed, together=TOGETHER)).report(bench, "64 at once", floor)
        with DaemonProcess(folder, index__commit_ms=FAST_COMMIT_MS) as daemon:
            (await _ask(daemon, prompts, captures)).report(bench, "merges", floor)
        async with _stopped_server() as port:
            with DaemonProcess(folder, **_remote(port)) as daemon:
                (await _ask(daemon, prompts, undisturbed)).report(bench, "stopped embedder", floor)


class Waited:
    """What became of the questions of one attack."""

    def __init__(self) -> None:
        self.ms: list[float] = []
        self.statuses: Counter[str] = Counter()
        self.late_in_daemon = 0

    @property
    def p50(self) -> float:
        return float(summary(self.ms)["p50"])

    def report(self, bench: str, figure: str, floor: float, target: str | None = None) -> None:
        figures = summary(self.ms)
        cut = sum(n for status, n in self.statuses.items() if status.startswith(("partial", "error", "timeout")))
        emit(
            bench,
            figure,
            figures["p50"],
            "ms",
            target=target,
            floor=floor,
            **figures,
            late=sum(ms > TTL_MS for ms in self.ms),
            late_in_daemon=self.late_in_daemon,
            cut_short=round(cut / len(self.ms), 5),
            statuses=dict(self.statuses),
        )


async def _ask(daemon: DaemonProcess, prompts: Sequence[str], attack: Attack, *, together: int = 1) -> Waited:
    """One question after the other, or so many at once."""
    waited = Waited()
    async with Client("attack", daemon.runtime_dir) as client:
        assert await client.ready(10)
        for prompt in prompts[:WARM_UP]:
            await client.recall(prompt, CTX, TTL_MS)
        late_before = (await client.status(timeout_s=30))["late"]

        async def one(number: int, prompt: str) -> None:
            started = time.perf_counter()
            answer = await client.recall(prompt, {**CTX, "run_id": f"asked-{number % together}"}, TTL_MS)
            waited.ms.append((time.perf_counter() - started) * 1000)
            waited.statuses[" ".join(filter(None, (answer.status, answer.reason)))] += 1

        async with attack(daemon, client):
            for first in range(0, len(prompts), together):
                batch = prompts[first : first + together]
                await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(batch, first)))
        waited.late_in_daemon = (await client.status(timeout_s=30))["late"] - late_before
    return waited


# -- attacks


@asynccontextmanager
async def undisturbed(daemon: DaemonProcess, client: Client) -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def captures(daemon: DaemonProcess, client: Client) -> AsyncIterator[None]:
    with captures_into(daemon, CAPTURES_PER_SECOND):
        yield


@asynccontextmanager
async def words_made_anew(daemon: DaemonProcess, client: Client) -> AsyncIterator[None]:
    async with _again_and_again(lambda: _reindex(daemon, "words")):
        yield


@asynccontextmanager
async def snapshot(daemon: DaemonProcess, client: Client) -> AsyncIterator[None]:
    async with _again_and_again(lambda: _reindex(daemon, "vectors")):
        yield


@asynccontextmanager
async def backup(daemon: DaemonProcess, client: Client) -> AsyncIterator[None]:
    script = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('VACUUM INTO ?', (sys.argv[2],))"
    copy = daemon.folder / "copy.db"

    async def once() -> None:
        copy.unlink(missing_ok=True)
        await _run("-c", script, str(daemon.data_dir / "recalld.db"), str(copy))

    async with _again_and_again(once):
        yield
    copy.unlink(missing_ok=True)


@asynccontextmanager
async def notes(daemon: DaemonProcess, client: Client) -> AsyncIterator[None]:
    texts = Texts(seed=int(time.time()))

    async def store_all() -> None:
        async with Client("notes", daemon.runtime_dir) as other:
            for _ in range(NOTES):
                await other.store(" ".join(texts.words(60)), CTX, timeout_s=30)

    task = asyncio.create_task(store_all())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _reindex(daemon: DaemonProcess, what: str) -> None:
    async with Client("reindex", daemon.runtime_dir) as other:
        await other.reindex(CTX, what, timeout_s=3_600)


@asynccontextmanager
async def _again_and_again(work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    async def run() -> None:
        while True:
            await work()

    task = asyncio.create_task(run())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _run(*arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments)
    try:
        await process.wait()
    except asyncio.CancelledError:
        process.kill()
        raise


@asynccontextmanager
async def _stopped_server() -> AsyncIterator[int]:
    """A server that takes connections and says nothing. Gives its port."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1")
    async with server:
        yield server.sockets[0].getsockname()[1]


def _remote(port: int) -> dict[str, str]:
    return {"embedder__kind": "openai", "embedder__base_url": f"http://127.0.0.1:{port}/v1", "embedder__model": "none"}
