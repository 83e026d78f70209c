"""Events in: decoded, checked, stored, acknowledged, and handed to the turn machine. Questions go to recall at once."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import NamedTuple

import anyio

from recalld import log
from recalld.config import Config
from recalld.core.clean import clean
from recalld.core.gates import is_control, length_gate, place_gate, recall_gate
from recalld.core.query import Query, build, history, wants_context
from recalld.core.scope import Scope, scope_of
from recalld.core.sequence import Offer, Source
from recalld.core.signals import Kind, Signal, distil, last_turn, text_of
from recalld.core.turn import Turn
from recalld.core.turns import TurnBook
from recalld.edge.store import Store
from recalld.edge.units import expire_unit, journal_unit, release_unit
from recalld.errors import StorageError
from recalld.service.counters import Counters
from recalld.service.notices import Notices, now_ms
from recalld.service.question import Question
from recalld.service.recall import Recall
from recalld.service.recent import Recent
from recalld.service.toggles import Toggles
from recalld.service.writer import Writer
from recalld.wire.codec import UnknownType, decode_event, sender_of
from recalld.wire.errors import Code, ProtocolError
from recalld.wire.messages import (
    HELLO,
    QUERY_CHARS_MAX,
    QUESTION,
    UNACKED_MAX,
    ContextBody,
    Event,
)

INBOX_MAX = 2 * UNACKED_MAX  # events waiting for the disk; beyond it they are dropped unacknowledged, and come again
RETRY_SECONDS = 0.05  # after a write that failed, so that a full disk does not become a busy loop
SEQ_END = 2**53  # a seq is an integer that every language has
SOURCE_DAYS = 30  # a publisher that was silent for so long is gone: each start has a src of its own
AFTER_ANSWER_SECONDS = 0.05  # what a question means for a turn can wait; the interpreter's lock is the answer's
COMMIT_MAX = 1_024  # events in one unit of writing


class Kept(NamedTuple):
    """An event on its way to the disk. `signal` is what it means for a turn, if anything."""

    src: str
    seq: int
    type: str
    signal: Signal | None


class Asked(NamedTuple):
    """A question on its way to the turn machine: in its order of arrival, but not before it is answered."""

    event: Event
    at_ms: int


class Ingest:
    def __init__(
        self,
        *,
        store: Store,
        writer: Writer,
        recall: Recall,
        counters: Counters,
        config: Callable[[], Config],
        notices: Notices,
        toggles: Toggles,
        closed: Callable[[Turn], Awaitable[None]],
    ) -> None:
        self._store = store
        self._writer = writer
        self._recall = recall
        self._counters = counters
        self._config = config
        self._notices = notices
        self._toggles = toggles
        self._recent = Recent()
        self._closing: deque[Turn] = deque()  # closed and remembered, not handed over yet
        self._closed = closed
        self._log = log.get("ingest")
        self._sources: dict[str, Source] = {}
        self._dirty: set[str] = set()
        self._told: set[tuple[str, str]] = set()
        self._inbox: list[Kept | Asked] = []
        self._stored_already: set[str] = set()
        self._arrived = anyio.Event()
        self._attempted = anyio.Event()  # set after each batch, stored or not
        self._timers = anyio.Event()
        self._busy = False
        self.book = TurnBook(config().turns)
        self.draining = False

    # -- start

    async def restore(self) -> int:
        """Take up where the last daemon stopped: its publishers, and the turns it had open. Returns the journal's length."""
        (error,) = await self._store.commit([expire_unit(now_ms() - SOURCE_DAYS * 86_400_000)])
        if error is not None:
            raise error
        self._sources = await self._store.sources()
        journal = await self._store.journal()
        await self._store.commit([release_unit(self._feed(journal))])
        return len(journal)

    # -- receiving; in the event loop, never waits

    def receive(self, batch: list[bytes]) -> None:
        read_at = time.monotonic()
        for data in batch:
            try:
                self._receive_one(data, read_at)
            except Exception:  # a defect of ours: it must not cost the messages behind it
                self._log.exception("message failed")
                self._counters.errors[Code.INTERNAL.value] += 1
        self._acknowledge(self._stored_already)
        self._stored_already.clear()
        if any(isinstance(item, Kept) for item in self._inbox):
            self._arrived.set()

    def _receive_one(self, data: bytes, read_at: float) -> None:
        try:
            event, encoding = decode_event(data)
        except UnknownType as e:
            self._counters.ignored["unknown_type"] += 1
            if (e.event.src, e.event.type) not in self._told and len(self._told) < UNACKED_MAX:
                self._told.add((e.event.src, e.event.type))
                self._refuse(data, e)
            elif e.event.seq is not None:
                self._keep(Kept(e.event.src, e.event.seq, "unknown", None))
            return
        except ProtocolError as e:
            self._refuse(data, e)
            return
        self._notices.remember(event.src, encoding)
        if event.type == HELLO:
            self._welcome(event)
        elif event.type == QUESTION:
            self._ask(event, read_at)
        else:
            self._keep_distilled(event)

    def _refuse(self, data: bytes, e: ProtocolError) -> None:
        """Tell the sender, and settle the event's seq: sent again it would be refused again."""
        self._counters.errors[e.code.value] += 1
        sender = sender_of(data)
        if sender.src is not None and sender.seq is not None:
            self._keep(Kept(sender.src, sender.seq, "refused", None))
        self._notices.refused(sender, e)

    def _source(self, src: str) -> Source:
        source = self._sources.get(src)
        if source is None:
            source = self._sources[src] = Source()
        return source

    def _welcome(self, event: Event) -> None:
        source = self._sources.get(event.src, Source())  # one that never sends anything kept is not remembered
        oldest = event.event.get("oldest")
        if isinstance(oldest, int) and source.upto + 1 < oldest < SEQ_END:
            source.settle_below(oldest)
            self._sources[event.src] = source
            self._dirty.add(event.src)
            self._arrived.set()
        self._counters.events[HELLO] += 1
        self._notices.welcome(event, source)

    def _ask(self, event: Event, read_at: float) -> None:
        self._counters.events[QUESTION] += 1
        self._count_scope(event)
        self.ask(event, read_at, self._notices.answer_to(event))
        if not self.draining and len(self._inbox) < INBOX_MAX:
            self._inbox.append(Asked(event, now_ms()))
            asyncio.get_running_loop().call_later(AFTER_ANSWER_SECONDS, self._arrived.set)

    def ask(self, event: Event, started: float, answer: Callable[[ContextBody], None]) -> None:
        """Ask recall for the prompt of an event that was read at `started`; `answer` gets every outcome, a gate's too."""
        config = self._config()
        scope = scope_of(event.ctx, config.shared)
        prompt = prompt_of(event)
        off = self._toggles.off(scope)
        reason = "draining" if self.draining else recall_gate(scope, event.ctx, prompt, config.gates, toggled_off=off)
        query = Query(prompt)
        if reason is None and scope is not None:
            query = self._query(event, scope, prompt, config)
            reason = length_gate(query, config.gates)
        if reason is not None or scope is None:
            self._counters.recall("skipped", reason, 0.0)
            answer(ContextBody("skipped", round((time.monotonic() - started) * 1000, 3), reason=reason))
            return
        deadline = started + (event.ttl_ms or config.recall.ttl_ms) / 1000
        self._recall.ask(
            Question(
                f"{event.src} {event.id}",
                scope.namespace,
                query.text,
                started,
                deadline,
                answer,
                config.recall,
                scope.session or "",
                query.context,
                scope.agent,
                event.ctx.session_id,
                event.ctx.run_id or "",
            )
        )

    def _query(self, event: Event, scope: Scope, prompt: str, config: Config) -> Query:
        """The prompt, with what was said before it where that is wanted: by the host, or else by what was heard here."""
        if not wants_context(prompt, config.recall):
            return Query(prompt)
        for_host = partial(is_control, settings=config.gates)
        messages = event.event.get("messages")
        if isinstance(messages, list):
            query = build(prompt, history(messages), config.recall, for_host)
            if query.context:
                return query
        key = (scope.namespace, scope.session or "")
        current = self.book.current(key)
        if current is not None and not self._is_served(current):
            current = None
        return build(prompt, self._recent.said(key, current), config.recall, for_host)

    def _distilled(self, event: Event, at_ms: int) -> Signal | None:
        scope = scope_of(event.ctx, self._config().shared)
        signal = distil(event, scope, at_ms)
        if signal is not None:
            signal.off = self._toggles.off(scope)
        return signal

    def _count_scope(self, event: Event) -> None:
        scope = scope_of(event.ctx, self._config().shared)
        if (scope is None or scope.session is None) and event.type not in _SCOPELESS:
            self._counters.ignored["unknown_scope"] += 1

    def _keep_distilled(self, event: Event) -> None:
        assert event.seq is not None
        self._count_scope(event)
        is_new = self._keep(Kept(event.src, event.seq, event.type, self._distilled(event, now_ms())))
        if is_new and event.type in _OUT_OF_SIGHT:  # now, not once it is on disk: the next prompt may come before
            scope = scope_of(event.ctx, self._config().shared)
            if scope is not None and scope.session is not None:
                self._recall.forget_given(scope.agent, scope.session)

    def _keep(self, kept: Kept) -> bool:
        """Take it in; False if it is there already, or there is no room."""
        if len(self._inbox) >= INBOX_MAX:
            self._counters.ignored["overload"] += 1
            return False
        offer = self._source(kept.src).offer(kept.seq)
        if offer is Offer.NEW:
            self._inbox.append(kept)
            return True
        self._counters.ignored["duplicate"] += 1
        if offer is Offer.STORED:
            self._stored_already.add(kept.src)
        return False

    async def publish_events(self, events: Iterable[Event]) -> dict[str, int]:
        """The rpc way in: returns `upto` by src when all are on disk. Raises StorageError, or ProtocolError(E_BUSY)."""
        events = list(events)
        if len(self._inbox) + len(events) > INBOX_MAX:
            raise ProtocolError(Code.BUSY, f"{INBOX_MAX} events are waiting for the disk")
        for event in events:
            assert event.seq is not None
            self._keep_distilled(event)
        self._arrived.set()
        while any(self._source(e.src).is_underway(e.seq or 0) for e in events):
            await self._attempted.wait()
        if not all(self._source(e.src).has(e.seq or 0) for e in events):
            raise StorageError(self._counters.faults.get("storage", "the events could not be stored; send them again"))
        return {e.src: self._source(e.src).upto for e in events}

    # -- tasks

    async def run(self) -> None:
        """Store, acknowledge and feed what arrives, until cancelled."""
        await self._hand_over()
        while True:
            await self._arrived.wait()
            self._arrived = anyio.Event()
            while self._inbox or self._dirty:
                self._busy = True
                batch, self._inbox = self._inbox[:COMMIT_MAX], self._inbox[COMMIT_MAX:]
                await self._take_in(batch)
                self._busy = bool(self._inbox)
                self._attempted.set()
                self._attempted = anyio.Event()

    async def _take_in(self, batch: list[Kept | Asked]) -> None:
        """Store and acknowledge the events of a batch, then give its signals to the turn machine, in their order."""
        kept = [item for item in batch if isinstance(item, Kept)]
        if (kept or self._dirty) and not await self._commit(kept):
            return
        signals = [item.signal if isinstance(item, Kept) else self._distilled(item.event, item.at_ms) for item in batch]
        await self._release(self._feed([s for s in signals if s is not None]))
        await self._hand_over()

    async def _commit(self, batch: list[Kept]) -> bool:
        # what the record must say once this is on disk, worked out on copies: nothing counts as stored before it is
        changed = {kept.src for kept in batch} | self._dirty
        dirty, self._dirty = self._dirty, set()
        planned = {src: self._source(src).copy() for src in changed}
        for kept in batch:
            planned[kept.src].stored(kept.seq)
        journalled = [kept.signal for kept in batch if kept.signal and kept.signal.kind is not Kind.BOUNDARY]
        try:
            await self._writer.write(journal_unit(journalled, planned, now_ms()))
        except StorageError as e:
            self._not_stored(batch, e)
            self._dirty |= dirty
            await anyio.sleep(RETRY_SECONDS)
            return False
        for kept in batch:
            self._source(kept.src).stored(kept.seq)
            self._counters.events[kept.type] += 1
        self._acknowledge(dict.fromkeys(kept.src for kept in batch))
        return True

    def _not_stored(self, batch: list[Kept], e: StorageError) -> None:
        self._counters.errors[Code.STORAGE.value] += len(batch)
        for kept in batch:
            self._source(kept.src).failed(kept.seq)
        for src in dict.fromkeys(kept.src for kept in batch):
            self._notices.failed(src, Code.STORAGE, str(e))

    async def _release(self, journal: list[tuple[str, int]]) -> None:
        if not journal:
            return
        try:
            await self._writer.write(release_unit(journal))
        except StorageError:
            return  # they are replayed at the next start, into turns that the store knows

    def _acknowledge(self, srcs: Iterable[str]) -> None:
        for src in srcs:
            self._notices.ack(src, self._source(src))

    def _feed(self, signals: list[Signal]) -> list[tuple[str, int]]:
        """Give signals to the turn machine. Returns the journal entries that no turn needs."""
        needless = []
        for signal in signals:
            held = False
            try:
                self.book.handle_timer(signal.at_ms)
                held = self.book.receive(signal, signal.at_ms)
            except Exception:  # a defect of ours: one signal is lost, not the daemon, and not again at each start
                self._log.exception("signal failed", type=signal.type, run_id=signal.run_id)
                self._counters.errors[Code.INTERNAL.value] += 1
            self._collect()
            if signal.type in _RESETS and signal.namespace is not None and signal.session is not None:
                self._recent.forget((signal.namespace, signal.session))
            if not held and signal.seq is not None and signal.kind is not Kind.BOUNDARY:
                needless.append((signal.src, signal.seq))
        self._counters.opened.update(self.book.take_opened())
        self._timers.set()
        return needless

    async def _hand_over(self) -> None:
        self._collect()
        while self._closing:
            await self._closed(self._closing.popleft())

    def _collect(self) -> None:
        """Take closed turns from the machine, and keep in mind what was said as long as the session goes on."""
        while (turn := self.book.next_close()) is not None:
            self._closing.append(turn)
            if turn.closed_by not in _RESETS and self._is_served(turn):
                self._recent.remember(turn)

    def _is_served(self, turn: Turn) -> bool:
        """Whether it is a conversation that recall may be asked about: not a heartbeat, not off the record."""
        config = self._config()
        return place_gate(scope_of(turn.ctx, config.shared), turn.ctx, config.gates, toggled_off=turn.off) is None

    async def run_timers(self) -> None:
        """Close turns when their time comes, until cancelled."""
        while True:
            self._timers = anyio.Event()
            at = self.book.next_timer()
            with anyio.move_on_after(None if at is None else max(0.0, (at - now_ms()) / 1000)):
                await self._timers.wait()
            self.book.handle_timer(now_ms())
            await self._hand_over()

    @property
    def given_up(self) -> int:
        """Events that publishers gave up, or that never came."""
        return sum(source.given_up for source in self._sources.values())

    async def close_turns(self, closed_by: str) -> int:
        """Store what has arrived, then close every open turn. Returns how many were open."""
        while self._inbox or self._busy:
            await self._attempted.wait()
        count = self.book.close_all(closed_by, now_ms())
        await self._hand_over()
        return count


_RESETS = frozenset({"session_end", "before_reset"})
# After these the model does not see what its session was given before.
_OUT_OF_SIGHT = frozenset({"session_start", "session_end", "before_reset", "before_compaction", "after_compaction"})
_SCOPELESS = frozenset({"gateway_start", "gateway_stop", "subagent_spawned", "subagent_ended"})


def prompt_of(event: Event) -> str:
    """The user's last words, bounded before anything else, then cleaned."""
    prompt = event.event.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        messages = event.event.get("messages")
        user, _ = last_turn(messages if isinstance(messages, list) else [])
        prompt = text_of(user.get("content")) if user else ""
    return clean(prompt, QUERY_CHARS_MAX)
