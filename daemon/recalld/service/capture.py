"""Closed turns to memories: gates, the user's words and the answer, facts by rule, the store."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread

from recalld import log
from recalld.config import Config
from recalld.core.clean import shorten
from recalld.core.extract import extract
from recalld.core.features import cut
from recalld.core.gates import PLACE_REASONS, TOGGLED_OFF, capture_gate
from recalld.core.scope import scope_of
from recalld.core.turn import Turn
from recalld.edge.store import Store
from recalld.edge.units import TurnRow, release_unit
from recalld.errors import StorageError
from recalld.service.counters import Counters
from recalld.service.memories import Memories, NewMemory, TurnWrite
from recalld.service.notes import Notes
from recalld.wire.messages import PROTOCOL_VERSION, Captured, CapturedTurn

WAITING_MAX = 16_384  # about 2 kB each; beyond it events are taken in no faster than turns are stored
BATCH_MAX = 64  # turns stored together when many close at once
USER_CHARS_MAX = 4_000  # of a turn's memory; the whole text stays with the turn
ANSWER_CHARS_MAX = 2_000
RETRY_SECONDS = (0.2, 1.0, 5.0)  # the last one again and again: a closed turn is never given up


class Capture:
    def __init__(
        self,
        *,
        store: Store,
        memories: Memories,
        counters: Counters,
        config: Callable[[], Config],
        notes: Notes,
        publish: Callable[[Captured], None],
    ) -> None:
        self._store = store
        self._memories = memories
        self._counters = counters
        self._config = config
        self._notes = notes
        self._publish = publish
        self._log = log.get("capture")
        self._send, self._turns = anyio.create_memory_object_stream[Turn](WAITING_MAX)
        self._idle = anyio.Event()
        self.waiting = 0  # turns handed over and not stored yet

    async def put(self, turn: Turn) -> None:
        """Hand over a closed turn; waits while WAITING_MAX are waiting to be stored."""
        self.waiting += 1
        await self._send.send(turn)

    async def idle(self) -> None:
        """Return when everything handed over is stored."""
        while self.waiting:
            await self._idle.wait()

    async def run(self) -> None:
        """Store each turn, in order, until cancelled."""
        with self._send, self._turns:
            async for turn in self._turns:
                batch = {self._identity(turn): turn}
                waiting: Turn | None = None
                while waiting is None and len(batch) < BATCH_MAX:
                    try:
                        following = self._turns.receive_nowait()
                    except anyio.WouldBlock:
                        break
                    if self._identity(following) in batch:  # the next version of a turn must find the one before stored
                        waiting = following
                    else:
                        batch[self._identity(following)] = following
                await self._store_batch(list(batch.values()))
                if waiting is not None:
                    await self._store_batch([waiting])

    @staticmethod
    def _identity(turn: Turn) -> tuple[str, str, str]:
        return turn.namespace, turn.session, turn.key

    async def _store_batch(self, turns: list[Turn]) -> None:
        """Store turns together; where one of them meets a defect of ours, each alone, and that one without its words."""
        try:
            await self._store_all(turns, self._prepare)
        except Exception:
            self._log.exception("turns not stored", turns=len(turns))
            for turn in turns:
                try:
                    await self._store_all([turn], self._prepare)
                except Exception:
                    self._counters.faults["capture"] = (
                        f"turn {turn.key} of {turn.session} could not be captured; see the log"
                    )
                    await self._store_all([turn], self._prepare_faulty)
        self._notes.wake()
        self.waiting -= len(turns)
        self._idle.set()
        self._idle = anyio.Event()

    async def _store_all(self, turns: list[Turn], prepare: Callable[[Turn], Awaitable[TurnWrite]]) -> None:
        attempt = 0
        while True:
            try:
                writes = [await prepare(turn) for turn in turns]
                await self._memories.write_turns(writes)
                break
            except StorageError as e:
                pause = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
                attempt += 1
                self._log.warning("turns not stored yet", turns=len(turns), retry_s=pause, error=str(e))
                await anyio.sleep(pause)
        for turn, write in zip(turns, writes, strict=True):
            self._tell(turn, write)

    def _tell(self, turn: Turn, write: TurnWrite) -> None:
        if turn.revision == 0:
            self._counters.finished[turn.agent] += 1
        row = write.row
        self._publish(
            Captured(
                v=PROTOCOL_VERSION,
                type="captured",
                id=f"turn-{row.id}-{row.revision}",
                src=turn.src,
                ts=time.time_ns() // 1_000_000,
                turn=CapturedTurn(row.id, row.session, row.closed_by, list(turn.runs)),
                outcome="skipped" if row.outcome == "skipped" else "captured",
                revision=row.revision,
                reason=row.reason,
                memories=[f"m{i}" for i in write.memory_ids],
            )
        )

    async def _prepare(self, turn: Turn) -> TurnWrite:
        """The turn as it will be stored: with what an earlier version of it knew, and the memories drawn from it."""
        runs = list(turn.runs) or [turn.key]
        prior = await self._store.turn_by_runs(turn.namespace, turn.session, runs)
        user = turn.user or (prior.user if prior else "")
        assistant = turn.assistant or (prior.assistant if prior else "")
        if turn.off and prior is not None:  # nothing of what was heard meanwhile may enrich what was kept before
            user, assistant = prior.user, prior.assistant
        config = self._config()
        scope = scope_of(turn.ctx, config.shared)
        reason = capture_gate(scope, turn.ctx, user, assistant, config.gates, toggled_off=turn.off)
        if not turn.seqs and prior is None:  # a question alone is not kept, so no turn may depend on it
            reason = "prompt_only"
        if prior is not None:
            reason = _settled_reason(prior, reason)
        status = turn.status if turn.assistant or not prior or not prior.assistant else prior.status
        row = TurnRow(
            id=0,
            namespace=turn.namespace,
            agent=turn.agent,
            session=turn.session,
            session_id=turn.ctx.session_id,
            opened_ms=min(turn.first_ts, prior.opened_ms) if prior else turn.first_ts,
            closed_ms=max(turn.last_ts, prior.closed_ms) if prior else turn.last_ts,
            closed_by=turn.closed_by,
            status=status,
            outcome="skipped" if reason else "captured",
            reason=reason,
            revision=prior.revision + 1 if prior else 0,
            speaker=turn.ctx.sender_name or (prior.speaker if prior else "User"),
            answerer=turn.ctx.agent_name or (prior.answerer if prior else "Assistant"),
            user=user if not reason else "",
            assistant=assistant if not reason else "",
            transcript=turn.transcript or (prior.transcript if prior else None),
            workspace=turn.ctx.workspace_dir or (prior.workspace if prior else None),
        )
        memories = [] if reason else await anyio.to_thread.run_sync(memories_of, row)
        return TurnWrite(row, runs, memories, release_unit(turn.journal), prior)

    async def _prepare_faulty(self, turn: Turn) -> TurnWrite:
        """A turn that could not be captured: counted with its reason, and not tried again at each start."""
        runs = list(turn.runs) or [turn.key]
        prior = await self._store.turn_by_runs(turn.namespace, turn.session, runs)
        row = prior or TurnRow(
            id=0,
            namespace=turn.namespace,
            agent=turn.agent,
            session=turn.session,
            session_id=turn.ctx.session_id,
            opened_ms=turn.first_ts,
            closed_ms=turn.last_ts,
            closed_by=turn.closed_by,
            status=turn.status,
            outcome="skipped",
            reason="fault",
            revision=0,
            speaker="",
            answerer="",
            user="",
            assistant="",
            transcript=None,
            workspace=None,
        )
        kept = await self._store.memories_of_turn(prior.id) if prior else []
        memories = [NewMemory(m.kind, m.text, m.category) for m in kept]  # the same texts: they stay as they are
        return TurnWrite(row, runs, memories, release_unit(turn.journal), prior)


def _settled_reason(prior: TurnRow, reason: str | None) -> str | None:
    """A late signal enriches a turn; it does not change whether the turn may be kept. What was forgotten stays so."""
    settled = PLACE_REASONS | {TOGGLED_OFF}
    if prior.reason == "forgotten" or prior.reason in settled:
        return prior.reason
    return None if reason in settled and prior.outcome == "captured" else reason


def memories_of(row: TurnRow) -> list[NewMemory]:
    """The turn, both names in it, as one memory or as parts where it is long; and the facts its user stated."""
    said = (
        (row.speaker, shorten(row.user, USER_CHARS_MAX)),
        (row.answerer, shorten(row.assistant, ANSWER_CHARS_MAX)),
    )
    memories = [NewMemory("turn", text) for text in cut(said)]
    memories += [NewMemory("fact", fact.text, fact.category) for fact in extract(row.user, row.speaker)]
    return memories
