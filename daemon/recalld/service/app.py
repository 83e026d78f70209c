"""The daemon: everything opened in order of dependence, run in one task group, and drained in the opposite order."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus
from msgspec.structs import replace

import recalld
from recalld import log
from recalld.config import RELOADABLE, Config
from recalld.core.words import ANALYSER
from recalld.edge import allocator, files
from recalld.edge.embed import load_background
from recalld.edge.embedders import make_embedder
from recalld.edge.nng import ContextPublisher, Events, Rpc
from recalld.edge.reader import Reader
from recalld.edge.store import Store
from recalld.edge.systemd import Notifier
from recalld.errors import ConfigError, RecalldError
from recalld.service.capture import Capture
from recalld.service.counters import Counters
from recalld.service.embedding import Questions
from recalld.service.indexing import Indexing
from recalld.service.ingest import Ingest
from recalld.service.injection import Injection
from recalld.service.memories import Memories
from recalld.service.notes import Notes
from recalld.service.notices import Notices
from recalld.service.ranking import Ranker
from recalld.service.recall import Recall
from recalld.service.recall_log import RecallLog
from recalld.service.rpc import RpcService
from recalld.service.toggles import Toggles
from recalld.service.writer import Writer
from recalld.wire.messages import DaemonInfo
from recalld.wire.operations import StatusResult

STATUS_SECONDS = 10.0
VECTORS_SECONDS = 2.0  # a drain waits so long for vectors that are made later; a client gives up after 5 s
STUCK_SECONDS = 5.0  # recall's keeper wakes at least every second
LEAVE_SECONDS = 8.0  # for what follows the drain: above SQLite's wait for a lock, below what TimeoutStopSec leaves
SWITCH_SECONDS = 0.0005  # a thread waits this long for the interpreter's lock; at the default 5 ms recall took 217 ms


class Daemon:
    """One life of recalld. `run` returns after a clean drain; `stop` may be called from a signal handler.

    `leaving` is called once when no more work is done and `run` waits only for what cannot be cancelled: a commit, threads.
    """

    def __init__(
        self,
        config: Config,
        reload: Callable[[], Config] | None = None,
        leaving: Callable[[], None] = lambda: None,
    ) -> None:
        self.config = config
        self._reload = reload
        self._leaving = leaving
        self.info = DaemonInfo("recalld", recalld.__version__, uuid4().hex)
        self.counters = Counters()
        self._started = time.monotonic()
        self._notifier = Notifier()
        self._stop = anyio.Event()
        self._log = log.get("daemon")
        self._cancel: Callable[[], None] = lambda: None

    def stop(self) -> None:
        """Begin to drain; the second call ends at once."""
        if self._stop.is_set():
            self._log.warning("stopped before everything was drained; the journal has the rest")
            self._cancel()
        self._stop.set()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until stopped. Raises RecalldError where the daemon cannot start."""
        sys.setswitchinterval(SWITCH_SECONDS)
        config = self.config
        self._log.info(
            "start started", version=recalld.__version__, data_dir=config.data_dir, runtime_dir=config.runtime_dir
        )
        async with AsyncExitStack() as stack:
            data = files.own_folder(config.data_path, "data_dir")
            runtime = files.own_folder(config.runtime_path, "runtime_dir")
            stack.enter_context(files.locked(data))
            await self._open(stack, data, runtime)
            async with anyio.create_task_group() as tg:
                self._cancel = tg.cancel_scope.cancel
                await self._serve(tg)
                ready_s = time.monotonic() - self._started
                self._log.info("start complete", seconds=round(ready_s, 3), memories=self._memories_held())
                self._notifier.ready(self._summary())
                task_status.started()
                try:
                    await self._stop.wait()
                    await self._drain_and_stop(tg)
                finally:
                    self._leaving()
        self._log.info("stop complete")

    async def _open(self, stack: AsyncExitStack, data: Path, runtime: Path) -> None:
        """Files, sockets and threads, in order of dependence; the stack closes them in the opposite order."""
        config, counters = self.config, self.counters
        embedder = await anyio.to_thread.run_sync(make_embedder, config.embedder)
        stack.callback(embedder.close)
        identity = f"{embedder.identity} {ANALYSER}"
        self.store = await stack.enter_async_context(_opened_store(data / "recalld.db", identity, embedder.dimensions))
        embedder.dimensions = embedder.dimensions or self.store.dimensions
        retry_s = config.embedder.retry_ms / 1000
        remote = Questions(embedder, counters, config.embedder.timeout_ms / 1000, retry_s) if embedder.remote else None
        self.writer = Writer(self.store, counters)
        reader = Reader(self.store.path, self.store.model_id)
        stack.callback(reader.close)
        background = load_background()
        self.recall_log = RecallLog(self.writer, counters, lambda: self.config)
        self.recall = Recall(
            readers=lambda: Reader(self.store.path, self.store.model_id),
            embedder=embedder,
            ranker=Ranker(background),
            injection=Injection(background, self._held),
            counters=counters,
            find=lambda namespace: self.indexing.namespaces.get(namespace),
            note=self.recall_log.note,
            remote=remote,
        )
        self.indexing = Indexing(
            folder=data / "index",
            store=self.store,
            reader=reader,
            writer=self.writer,
            embedder=embedder,
            identity=identity,
            counters=counters,
            config=config.index,
            when_idle=self.recall.when_idle,
            retry_s=retry_s,
        )
        await anyio.to_thread.run_sync(self.indexing.open_all)
        if remote is not None:
            remote.start()
            stack.callback(remote.stop)
        self.recall.start()
        stack.callback(self.recall.stop)

        def refused(uid: int) -> None:
            counters.ignored["foreign_uid"] += 1

        self.context = ContextPublisher(config.address("context"), refused)
        stack.callback(self.context.close)
        notices = Notices(self.context.publish, self.info)
        self.memories = Memories(self.store, self.writer, self.indexing)
        toggles = Toggles(self.store, self.writer)
        await toggles.restore()
        self.ingest = Ingest(
            store=self.store,
            writer=self.writer,
            recall=self.recall,
            counters=counters,
            config=lambda: self.config,
            notices=notices,
            toggles=toggles,
            closed=lambda turn: self.capture.put(turn),
        )
        self.notes = Notes(self.store, self.writer, counters, lambda: self.config)
        self.capture = Capture(
            store=self.store,
            memories=self.memories,
            counters=counters,
            config=lambda: self.config,
            notes=self.notes,
            publish=notices.captured,
        )
        replayed = await self.ingest.restore()
        if replayed:
            self._log.info("journal replayed", events=replayed, open_turns=self.ingest.book.open_turns)
        token_path = runtime / "rpc.token"
        tcp = config.rpc_tcp_address
        token = files.make_token(token_path) if tcp else None
        self.rpc = Rpc([config.address("rpc"), *([tcp] if tcp else [])], refused)
        stack.callback(self.rpc.close)
        self.rpc_service = RpcService(
            store=self.store,
            memories=self.memories,
            recall=self.recall,
            recall_log=self.recall_log,
            ingest=self.ingest,
            toggles=toggles,
            counters=counters,
            config=lambda: self.config,
            status=self.status,
            drain=self.drain,
            reindex=self.indexing.reindex,
            token=token,
        )
        self.events = Events(config.address("events"), refused)
        stack.callback(self.events.close)

    async def _serve(self, tg: anyio.abc.TaskGroup) -> None:
        await tg.start(self._watch_signals)  # before anyone hears that we are ready
        for task in (
            self.writer.run,
            self.indexing.run,
            self.ingest.run,
            self.ingest.run_timers,
            self.notes.run,
            self.recall_log.run,
            self._report,
        ):
            tg.start_soon(task)
        tg.start_soon(self.capture.run)
        tg.start_soon(self.rpc.serve, self.rpc_service.handle, self.config.rpc.contexts)
        self.events.start(self.ingest.receive)

    # -- draining

    async def drain(self, vectors_s: float = VECTORS_SECONDS) -> int:
        """Close every open turn; return how many when they are stored and findable by their words, and, if that takes
        no longer than `vectors_s`, by their vectors."""
        count = await self.ingest.close_turns("drain")
        await self.capture.idle()
        await self.notes.write()
        await self.indexing.flush()
        with anyio.move_on_after(vectors_s):
            await self.indexing.vectors_made()
        await self.recall_log.write()
        return count

    async def _drain_and_stop(self, tg: anyio.abc.TaskGroup) -> None:
        self._notifier.stopping()
        self._log.info("stop started", open_turns=self.ingest.book.open_turns)
        self.ingest.draining = True
        with anyio.move_on_after(self.config.drain_ms / 1000) as scope:
            await anyio.sleep(0.05)  # what is in the sockets already
            closed = await self.drain(vectors_s=0)
            self._log.info("turns drained", turns=closed)
        if scope.cancelled_caught:
            self._log.warning(
                "not everything was drained in time; the journal has the rest", drain_ms=self.config.drain_ms
            )
        tg.cancel_scope.cancel()

    # -- watching

    async def _watch_signals(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGHUP:
                    self.reload()
                else:
                    self.stop()

    def reload(self) -> None:
        """Take up what can be changed while running; say what cannot. A configuration that is wrong changes nothing."""
        if self._reload is None:
            return
        self._notifier.reloading()
        try:
            new = self._reload()
        except ConfigError as e:
            self.counters.faults["configuration"] = f"not reloaded: {e}"
            self._log.error("reload failed", error=str(e))
        else:
            self.counters.faults.pop("configuration", None)
            changed = [f for f in Config.__struct_fields__ if getattr(new, f) != getattr(self.config, f)]
            kept = {f: getattr(self.config, f) for f in changed if f not in RELOADABLE}
            self.config = replace(new, **kept)
            log.configure(self.config.log_level)
            self._log.info(
                "reload complete",
                changed=",".join(f for f in changed if f in RELOADABLE) or "nothing",
                needs_restart=",".join(kept) or "nothing",
            )
        self._notifier.ready(self._summary())

    async def _report(self) -> None:
        """Feed the watchdog while recall's keeper lives, and tell the service manager how we are."""
        interval = min(STATUS_SECONDS, (self._notifier.watchdog_s or STATUS_SECONDS * 2) / 2)
        while True:
            if time.monotonic() - self.recall.beat < STUCK_SECONDS:
                self._notifier.alive()
            self._notifier.status(self._summary())
            await anyio.sleep(interval)

    def _memories_held(self) -> int:
        return sum(len(i.vectors) for i in self.indexing.namespaces.values())

    def _held(self, namespace: str) -> int:
        index = self.indexing.namespaces.get(namespace)
        return len(index.vectors) if index else 0

    def _summary(self) -> str:
        recalls = sum(n for status, n in self.counters.recalls.items() if ":" not in status)
        faults = f"; faults: {', '.join(self.counters.faults)}" if self.counters.faults else ""
        return f"{self._memories_held()} memories, {recalls} recalls, {self.counters.late} late{faults}"

    async def status(self) -> StatusResult:
        agents: dict[str, dict[str, Any]] = {}
        for agent, outcome, reason, count in await self.store.rows(
            "SELECT agent, outcome, reason, count(*) FROM turns GROUP BY agent, outcome, reason"
        ):
            entry = agents.setdefault(agent, {"seen": 0, "captured": 0, "skipped": {}, "memories": 0})
            entry["seen"] += count
            if outcome == "captured":
                entry["captured"] += count
            else:
                entry["skipped"][reason] = count
        for namespace, count in await self.store.rows("SELECT namespace, count(*) FROM memories GROUP BY namespace"):
            agents.setdefault(namespace, {"seen": 0, "captured": 0, "skipped": {}, "memories": 0})["memories"] = count
        sql = "SELECT count(*) FROM embeddings WHERE model_id = ? AND vector IS NULL"
        [(vectors_waiting,)] = await self.store.rows(sql, self.store.model_id)
        c = self.counters
        return StatusResult(
            daemon=self.info,
            uptime_s=round(time.monotonic() - self._started, 3),
            data_dir=self.config.data_dir,
            events=dict(c.events),
            ignored={**c.ignored, **({"given_up": self.ingest.given_up} if self.ingest.given_up else {})},
            errors=dict(c.errors),
            agents=agents,
            recalls=dict(c.recalls),
            latency_ms=c.latency(),
            late=c.late,
            open_turns=self.ingest.book.open_turns,
            recalls_cached=c.cached,
            recalls_shared=c.shared,
            recalls_unlogged=c.unlogged,
            faults=[*(f"{thing}: {what}" for thing, what in c.faults.items()), *self._unaccounted()],
            vectors_waiting=vectors_waiting,
        )

    def _unaccounted(self) -> list[str]:
        """Turns that were opened and are neither open, nor waiting to be stored, nor stored with an outcome."""
        missing = self.counters.opened.total() - self.counters.finished.total() - self.ingest.book.open_turns
        if missing <= 0 or self.capture.waiting:
            return []
        return [f"turns: {missing} were seen and have no outcome; please report it with the daemon's log"]


@asynccontextmanager
async def _opened_store(path: Path, identity: str, dimensions: int) -> AsyncIterator[Store]:
    store = Store(path)
    await store.open(identity, dimensions)
    try:
        yield store
    finally:
        with anyio.CancelScope(shield=True):
            await store.close()


def run(config: Config, reload: Callable[[], Config] | None = None) -> None:
    """Run the daemon in a new event loop until it is stopped. Raises RecalldError.

    Where a thread goes on LEAVE_SECONDS after the drain, the process ends here: with exit code 0 if it was to stop.
    """
    limit = threading.Timer(LEAVE_SECONDS, lambda: _leave(0 if daemon.stopping else RecalldError.exit_code))
    limit.daemon = True  # it must not keep the process alive itself
    daemon = Daemon(config, reload, limit.start)
    os.umask(0o077)
    allocator.give_back()
    try:
        anyio.run(daemon.run, backend="asyncio", backend_options={"use_uvloop": True})
    except ExceptionGroup as group:
        first = next((e for e in _leaves(group) if isinstance(e, RecalldError)), None)
        if first is not None:
            raise first from group
        raise
    finally:
        limit.cancel()


def _leave(exit_code: int) -> None:
    """End the process under threads that do not come to their end. As after a crash, the journal has what was acknowledged."""
    log.get("daemon").warning(
        "ended without waiting for a disk that is stuck, or a long rebuild; the journal has the rest",
        seconds=LEAVE_SECONDS,
    )
    os._exit(exit_code)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for e in group.exceptions:
        found.extend(_leaves(e) if isinstance(e, BaseExceptionGroup) else [e])
    return found
