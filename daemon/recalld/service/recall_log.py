"""The log of recalls: how each answer came about, written after it was sent, and how often each memory was used."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import anyio
import msgspec

from recalld import log
from recalld.config import Config, RecallLogConfig
from recalld.core.scored import Below, Judged, Ranked, Verdict
from recalld.edge.recalls import RecallRecord, recalls_bound_unit, recalls_unit, uses_unit
from recalld.edge.units import Unit
from recalld.errors import StorageError
from recalld.service.counters import Counters
from recalld.service.notices import now_ms
from recalld.service.question import Question
from recalld.service.writer import Writer
from recalld.wire.messages import ContextBody

PAUSE_SECONDS = 1.0  # polled: waking the event loop for each answer would be work in its wake
ROWS_MAX = 64  # in one unit: the event loop is held for 1 ms while it is made, and events wait for its commit
WAITING_MAX = 1_024  # more in a second are not logged, but counted
BOUND_SECONDS = 3_600.0  # also where nobody asks, what is too old goes
DAY_MS = 86_400_000


class Answered(msgspec.Struct):
    """An answer as it is told afterwards: without a memory's text. `injected`: ids."""

    question: Question
    body: ContextBody
    stages: dict[str, float]
    candidates: list[Judged]
    below: Below
    injected: set[int]


class RecallLog:
    """`note` from any thread, all else from the event loop."""

    def __init__(self, writer: Writer, counters: Counters, config: Callable[[], Config]) -> None:
        self._writer = writer
        self._counters = counters
        self._config = config
        self._waiting: deque[Answered] = deque()
        self._lock = anyio.Lock()
        self._log = log.get("recall_log")
        self._bounded: tuple[RecallLogConfig, float] | None = None

    def note(self, question: Question, ranked: Ranked | None, body: ContextBody) -> None:
        """Take an answer that was sent. Never waits."""
        if len(self._waiting) >= WAITING_MAX:
            self._counters.unlogged += 1
            return
        self._waiting.append(answered(question, ranked, body))

    async def run(self) -> None:
        """Write what was noted, at a steady pace, until cancelled."""
        while True:
            await self.write()
            await anyio.sleep(PAUSE_SECONDS)

    async def write(self) -> None:
        """Write everything noted so far. What cannot be written is counted and given up: it is no part of the record."""
        async with self._lock:
            while batch := [self._waiting.popleft() for _ in range(min(len(self._waiting), ROWS_MAX))]:
                await self._write(batch)
            config = self._config().recall_log
            if self._bounded is None or self._bounded[0] != config or self._bounded[1] < time.monotonic():
                await self._write([])
                self._bounded = (config, time.monotonic() + BOUND_SECONDS)

    async def _write(self, batch: list[Answered]) -> None:
        try:
            await self._writer.write(self._unit(batch))
        except StorageError:
            self._counters.unlogged += len(batch)
        except Exception:  # a defect of ours: it must not cost the daemon
            self._log.exception("recalls not logged")
            self._counters.unlogged += len(batch)

    def _unit(self, batch: list[Answered]) -> Unit:
        config = self._config().recall_log
        records = [record(item) for item in batch]
        uses: dict[int, tuple[int, int]] = {}
        for item, made in zip(batch, records, strict=True):
            for memory_id in item.injected:
                uses[memory_id] = (uses.get(memory_id, (0, 0))[0] + 1, made.at_ms)
        logged = recalls_unit(records) if config.enabled else []
        bound = recalls_bound_unit(config.keep if config.enabled else 0, now_ms() - config.days * DAY_MS)
        return [*logged, *bound, *uses_unit(uses)]


def answered(question: Question, ranked: Ranked | None, body: ContextBody) -> Answered:
    injected = {int(memory.id[1:]) for memory in body.memories}
    bare = ContextBody(body.status, body.elapsed_ms, tokens=body.tokens, reason=body.reason)
    stages = dict(question.stages)  # a search that was late still sets its own
    ranked = ranked or Ranked([])
    candidates = ranked.judged(injected)
    beside = injected.difference(candidate.id for candidate in candidates)
    candidates += [Judged(memory_id, 0.0, {}, Verdict.COLD_START) for memory_id in sorted(beside)]
    return Answered(question, bare, stages, candidates, ranked.below(), injected)


def record(item: Answered) -> RecallRecord:
    question, body = item.question, item.body
    return RecallRecord(
        namespace=question.namespace,
        agent=question.agent,
        session=question.session,
        run_id=question.run_id,
        at_ms=now_ms() - round((time.monotonic() - question.started) * 1000),
        query=question.query,
        context=question.context,
        status=body.status,
        reason=body.reason,
        source=question.source,
        tokens=body.tokens,
        elapsed_ms=body.elapsed_ms,
        settings=msgspec.to_builtins(question.settings),
        stages={stage: round((at - question.started) * 1000, 3) for stage, at in item.stages.items()},
        candidates=item.candidates,
        below=item.below,
    )
