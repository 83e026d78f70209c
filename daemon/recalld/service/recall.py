"""Recall: a thread for each of the two searches, and one that keeps the deadline.

A question goes to both lanes. The one that ends last scores, packs and answers. The keeper never searches: at a
question's cutoff it answers with what is there. So nothing that a search does can make an answer late, and where both
are in time, no thread waits for another one's turn.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from msgspec.structs import replace

from recalld import log
from recalld.core.flight import Flight, Flights
from recalld.core.pack import memory_of
from recalld.core.race import Race, Runner
from recalld.core.recent import RecentlyFound
from recalld.core.scored import Ranked
from recalld.core.words import terms
from recalld.edge.embed import Embedder, Vector
from recalld.edge.lexical import LexicalHits
from recalld.edge.reader import Reader
from recalld.errors import StorageError
from recalld.service.counters import Counters
from recalld.service.embedding import Questions
from recalld.service.indexing import NamespaceIndex
from recalld.service.injection import Injection
from recalld.service.lookups import Offered, look_up
from recalld.service.notices import now_ms
from recalld.service.ordering import order
from recalld.service.question import Question
from recalld.service.ranking import Ranker, VectorHits, searched
from recalld.wire.errors import Code
from recalld.wire.messages import ContextBody, Status

LANES = ("vector", "lexical")  # the longer one begins first
SPARE = 8  # candidates of a ranked list beyond its length: for those that turn out to be superseded or expired
SEND_SECONDS = 0.0005
KEEPER_SECONDS = 1.0  # how long the keeper sleeps at most: its beat feeds the watchdog
IDLE_LOOK_SECONDS = 0.005
WAITING_MAX = 256  # questions under way; one more is answered E_BUSY at once
WAITING_FEW = 4  # so many wait whatever they take: a slow one says little of the next


class Found(NamedTuple):
    """What is ranked for a question, and what was looked up beside."""

    ranked: Ranked
    offered: Offered


class Recall:
    """`ask` from the event loop; `readers` makes a reader for each thread; `note` takes each answer after it was sent."""

    def __init__(
        self,
        *,
        readers: Callable[[], Reader],
        embedder: Embedder,
        ranker: Ranker,
        injection: Injection,
        counters: Counters,
        find: Callable[[str], NamespaceIndex | None],
        note: Callable[[Question, Ranked | None, ContextBody], None],
        remote: Questions | None = None,
    ) -> None:
        """`remote`: who is asked for the vectors of questions, where the embedder is another process."""
        self._readers = readers
        self._embedder = embedder
        self._ranker = ranker
        self._injection = injection
        self._counters = counters
        self._find = find
        self._note = note
        self._remote = remote
        self._log = log.get("recall")
        self._lanes: dict[str, SimpleQueue[Flight[Question, Any] | None]] = {lane: SimpleQueue() for lane in LANES}
        self._lock = threading.Lock()  # around the race, what is shared, the idle work and the keeper's alarm
        self._race: Race[Question, Any] = Race(LANES)
        self._flights: Flights[Question, Any] = Flights(LANES)
        self._recent: RecentlyFound[Found] = RecentlyFound()
        self._service_s = 0.0  # what the vector lane takes for a question, lately
        self._answering: dict[int, Question] = {}  # being ranked in a lane
        self._ready: deque[tuple[Question, Found]] = deque()  # found before: the keeper answers them
        self._idle_work: list[Callable[[], None]] = []
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._alarm = 0.0  # until when the keeper sleeps
        self._stopping = False
        self._threads: list[threading.Thread] = []
        self.beat = time.monotonic()  # when the keeper was last seen alive

    def start(self) -> None:
        searches = {"lexical": self._search_words, "vector": self._search_vectors}
        self._threads = [threading.Thread(target=self._keep, name="keeper", daemon=True)]
        for lane in LANES:
            self._threads.append(
                threading.Thread(target=self._run_lane, args=(lane, searches[lane]), name=lane, daemon=True)
            )
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Answer what is under way, then end the threads."""
        self._stopping = True
        self._wake.put(None)
        for thread in self._threads:
            thread.join(timeout=5)

    # -- from the event loop

    def forget_given(self, agent: str, session: str) -> None:
        """See `Injection.forget`."""
        self._injection.forget((agent, session))

    def ask(self, question: Question) -> None:
        index = self._find(question.namespace)
        if index is None:
            self._finish(question, "empty", None)
            return
        question.generation = index.generation
        directives = question.limit is None and question.settings.directives
        question.first = bool(directives) and self._injection.is_first(question)
        if len(self._ready) < WAITING_MAX and (found := self._found_before(question)) is not None:
            question.source = "cache"
            self._counters.cached += 1
            self._ready.append((question, found))
            self._wake.put(None)
            return
        question.terms = terms(question.whole)
        cutoff = question.cutoff
        flight = None
        with self._lock:
            busy = self._is_busy(cutoff)
            if not busy:
                if not self._race.start(question.key, question, cutoff):
                    return  # the same question again; its answer is under way
                flight = self._board(question)
            late_alarm = self._alarm > cutoff
        if busy:
            self._finish(question, "error", Code.BUSY.value)
            return
        if flight is not None:
            if self._remote is None:
                self._lanes["vector"].put(flight)
            else:
                self._remote.ask(question.whole, cutoff, partial(self._embedded, flight))
            self._lanes["lexical"].put(flight)
        if late_alarm:
            self._wake.put(None)

    def _embedded(self, flight: Flight[Question, Any], vector: Vector | None) -> None:
        flight.askers[0].vector = vector
        self._lanes["vector"].put(flight)

    def _is_busy(self, cutoff: float) -> bool:
        """Whether a question would wait in vain, at the pace at which those before it are answered. It is told at once: an
        error that comes after its deadline is of no use, and the time goes to those that can be served."""
        waiting = len(self._race)
        if waiting <= WAITING_FEW:
            return False
        return waiting >= WAITING_MAX or time.monotonic() + 1.25 * waiting * self._service_s > cutoff

    def _found_before(self, question: Question) -> Found | None:
        if not question.settings.cache_s or (key := question.same) is None:
            return None
        with self._lock:
            found = self._recent.get(key, question.generation, time.monotonic())
        return found._replace(ranked=found.ranked.undecided()) if found else None

    def _board(self, question: Question) -> Flight[Question, Any] | None:
        """The search that it has to begin; None where it shares one that is under way."""
        key = question.same
        if key is not None:
            now = time.monotonic()
            shared = self._flights.join(key, question, question.generation, now, question.cutoff)
            if shared is not None:
                question.offered = shared.askers[0].offered
                question.source = "shared"
                self._counters.shared += 1
                for lane, value in shared.found.items():  # one at most: the second ends the flight
                    self._race.result(question.key, lane, value)
                return None
        return self._flights.begin(key, question, question.generation, question.cutoff)

    def when_idle(self, work: Callable[[], None]) -> None:
        """Run `work` in the keeper while no question is under way; return when it is done, or raise what it raised."""
        done = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as e:
                failed.append(e)
            done.set()

        with self._lock:
            self._idle_work.append(run)
        self._wake.put(None)
        while not done.wait(0.5):
            if not self._threads[0].is_alive():
                raise RuntimeError("recall has ended")
        if failed:
            raise failed[0]

    # -- the keeper

    def _keep(self) -> None:
        reader = self._readers()
        while not self._stopping:
            self.beat = now = time.monotonic()
            with self._lock:
                due = self._race.due(now)
                overdue = [q for q in self._answering.values() if q.last_moment <= now]
                busy = len(self._race) or self._ready or self._answering
                work = self._idle_work.pop(0) if self._idle_work and not busy else None
                cutoff = self._race.next_cutoff()
                moments = [q.last_moment for q in self._answering.values() if q.last_moment > now]
                self._alarm = min([now + KEEPER_SECONDS, *moments, *([] if cutoff is None else [cutoff])])
                if self._idle_work:  # a question that ends does not wake the keeper
                    self._alarm = min(self._alarm, now + IDLE_LOOK_SECONDS)
            for question in overdue:
                self._finish(question, "error", Code.DEADLINE.value)
            for number, runner in enumerate(due, 1):
                self._complete(runner, reader, behind=len(due) - number)
            if work is not None:
                work()
            elif self._ready:
                self._answer_ready(reader)
            elif not due and not overdue:
                with suppress(Empty):
                    self._wake.get(timeout=max(0.0, self._alarm - time.monotonic()))
        for queue in self._lanes.values():
            queue.put(None)
        with self._lock:
            due = self._race.due(float("inf"))
        for runner in due:
            self._complete(runner, reader)
        while self._ready:
            self._answer_ready(reader)
        for work in self._idle_work:
            work()
        reader.close()

    def _answer_ready(self, reader: Reader) -> None:
        """One: a cutoff may be due after it."""
        question, found = self._ready.popleft()
        question.offered = found.offered
        self._answer(question, lambda: found, reader, None)

    # -- in whichever thread has the last word

    def _complete(self, runner: Runner[Question, Any], reader: Reader, *, behind: int = 0) -> None:
        """`behind`: how many others have to be answered after it."""
        question = runner.question
        late = runner.late(LANES)
        if len(late) == len(LANES) or time.monotonic() + behind * SEND_SECONDS > question.latest:
            self._finish(question, "error", Code.DEADLINE.value)
            return
        question.done("searched")
        reason = f"{late[0]}_late" if late else None
        self._answer(question, lambda: self._rank(runner, reader, whole=not late), reader, reason)

    def _rank(self, runner: Runner[Question, Any], reader: Reader, *, whole: bool) -> Found:
        """`whole`: no search was late, so that others who ask the same may have it."""
        question = runner.question
        if whole and question.source == "shared" and (before := self._found_before(question)) is not None:
            return before
        index = self._find(question.namespace)
        assert index is not None
        ranked = self._ranker.rank(
            question.namespace,
            question.query,
            question.context,
            runner.results.get("lexical"),
            runner.results.get("vector"),
            index.features,
            reader,
            question.settings.floor if question.limit is None else question.limit + SPARE,
            question.offered,
        )
        question.done("ranked")
        found = Found(ranked, question.offered)
        if whole and question.settings.cache_s and (key := question.same) is not None:
            until = time.monotonic() + question.settings.cache_s
            with self._lock:
                self._recent.put(key, found._replace(ranked=ranked.undecided()), question.generation, until)
        return found

    def _in_order(self, question: Question, ranked: Ranked, reader: Reader) -> Ranked:
        index = self._find(question.namespace)
        ordered = order(
            question.namespace,
            ranked.memories,
            question.offered,
            question.settings,
            reader,
            now_ms(),
            follow_links=question.limit is None and index is not None and index.linked,
        )
        question.done("ordered")
        return ranked.in_order(ordered)

    def _answer(self, question: Question, find: Callable[[], Found], reader: Reader, reason: str | None) -> None:
        """`reason`: what was late."""
        try:
            found = find()
            ranked = self._in_order(question, found.ranked, reader)
            if question.limit is None:
                body = self._injection.compose(question, ranked, reader, reason)
            else:
                memories = [memory_of(scored) for scored in ranked.memories[: question.limit]]
                body = ContextBody("partial" if reason else "ok", 0.0, reason=reason, memories=memories)
            question.done("packed")
        except StorageError as e:
            self._log.error("recall failed", error=str(e))
            self._finish(question, "error", Code.STORAGE.value)
        except Exception:
            self._log.exception("recall failed")
            self._finish(question, "error", Code.INTERNAL.value)
        else:
            self._send(question, body, ranked)

    def _finish(self, question: Question, status: Status, reason: str | None) -> None:
        self._send(question, ContextBody(status, 0.0, reason=reason))

    def _send(self, question: Question, body: ContextBody, ranked: Ranked | None = None) -> None:
        """The first answer is the answer: where a lane ranks for too long, the keeper's."""
        with self._lock:
            self._answering.pop(id(question), None)
            if question.answered:
                return
            question.answered = True
        body.elapsed_ms = round((time.monotonic() - question.started) * 1000, 3)
        question.answer(body)
        if question.watch is not None:
            question.watch(question, ranked, body)
            return
        if time.monotonic() > question.deadline:
            self._counters.late += 1
        if question.limit is None:  # a tool's search is not a recall
            self._counters.recall(body.status, body.reason, body.elapsed_ms)
            self._note(question, ranked, body)

    # -- the lanes

    def _run_lane(self, lane: str, search: Callable[[Question, NamespaceIndex, Reader], Any]) -> None:
        reader = self._readers()
        while (flight := self._lanes[lane].get()) is not None:
            question = flight.askers[0]
            result = None
            index = self._find(question.namespace)
            taken = time.monotonic()
            with self._lock:  # nobody joins between this look and its end
                in_time = time.monotonic() < flight.until
            if index is not None and in_time:
                try:
                    result = search(question, index, reader)
                except Exception:
                    self._log.exception("search failed", lane=lane)
            with self._lock:
                askers = self._flights.landed(flight, lane, result)
            for asker in askers:
                asker.offered = question.offered
                if result is not None:
                    asker.done(lane)
                with self._lock:  # each only when its turn comes: until then the keeper has an eye on it
                    runner = self._race.result(asker.key, lane, result)
                    if runner is not None:
                        self._answering[id(asker)] = asker
                if runner is not None:
                    self._complete(runner, reader)
            if lane == "vector" and in_time:
                self._service_s += (time.monotonic() - taken - self._service_s) / 8
        reader.close()

    def _search_words(self, question: Question, index: NamespaceIndex, reader: Reader) -> LexicalHits | None:
        question.offered = self._look_up(question, index, reader)
        if index.lexical is None:  # not made yet, or it could not be
            return None if index.broken else LexicalHits([], {}, 0)
        return index.lexical.search(searched(question.terms), question.candidates)

    def _search_vectors(self, question: Question, index: NamespaceIndex, reader: Reader) -> VectorHits | None:
        vector = question.vector if self._remote else self._embedder.embed_query(question.whole, question.cutoff)
        if vector is None:  # in time there is none
            return None
        return VectorHits(vector, index.vectors.search(vector, question.candidates))

    def _look_up(self, question: Question, index: NamespaceIndex, reader: Reader) -> Offered:
        def search(wanted: Sequence[str], limit: int) -> list[int]:
            return index.lexical.search(wanted, limit).ids if index.lexical else []

        settings = question.settings if question.limit is None else replace(question.settings, directives=())
        return look_up(
            question.namespace,
            question.query,
            question.terms,
            settings,
            index.entities,
            reader,
            search,
            now_ms(),
            first=question.first,
        )
