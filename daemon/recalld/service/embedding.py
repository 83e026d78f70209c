"""Asking an embedder that may be slow, stuck or gone: questions in threads of their own behind a breaker, texts in the
background. Nothing here holds up a lane of recall, the event loop, or the daemon's end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import NamedTuple

from recalld import log
from recalld.core.breaker import Breaker, State
from recalld.edge.embed import Embedder, Vector, Vectors
from recalld.errors import EmbedderError
from recalld.service.counters import Counters

THREADS = 4  # questions asked of the server at the same time
WAITING_MAX = 64  # questions that wait for one of them; one more has no vector
FAILURES_MAX = 3  # in a row: then the server is left alone
FAULT = "embedder"

Done = Callable[[Vector | None], None]


class Asked(NamedTuple):
    text: str
    deadline: float
    ticket: int
    done: Done


class Questions:
    """The vectors of questions from a remote embedder. `ask` from any thread.

    While the breaker is open there is none, at once; the fault that `recalld status` shows says why.
    """

    def __init__(self, embedder: Embedder, counters: Counters, timeout_s: float, retry_s: float) -> None:
        self._embedder = embedder
        self._counters = counters
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._lock = threading.Lock()  # around the breaker
        self._breaker = Breaker(FAILURES_MAX, retry_s)
        self._reason = f"{embedder.identity} did not answer in time"
        self._waiting: SimpleQueue[Asked | None] = SimpleQueue()
        self._log = log.get("embedder")

    def start(self) -> None:
        for number in range(THREADS):
            threading.Thread(target=self._run, name=f"embedder-{number}", daemon=True).start()

    def stop(self) -> None:
        """Does not wait: a thread may be stuck."""
        for _ in range(THREADS):
            self._waiting.put(None)

    def ask(self, text: str, deadline: float, done: Done) -> None:
        """Call `done` once, with the vector or None, from this thread or another; it must not block."""
        now = time.monotonic()
        deadline = min(deadline, now + self._timeout_s)
        ticket = None
        with self._lock:
            before = self._breaker.state
            self._breaker.handle_timer(now)  # where all threads are stuck, only the time tells
            if self._waiting.qsize() < WAITING_MAX:
                ticket = self._breaker.begin(now, deadline)
            after = self._breaker.state
        self._report(before, after)
        if ticket is None:
            done(None)
        else:
            self._waiting.put(Asked(text, deadline, ticket, done))

    def _run(self) -> None:
        while (asked := self._waiting.get()) is not None:
            vector: Vector | None = None
            reason = ""
            try:
                vector = self._embedder.embed_query(asked.text, asked.deadline)
            except EmbedderError as e:
                reason = str(e)
            except Exception as e:
                self._log.exception("question not embedded")
                reason = f"{type(e).__name__}: {e}"
            with self._lock:
                self._reason = reason or self._reason
                before, now = self._breaker.state, time.monotonic()
                if vector is None:
                    self._breaker.failed(asked.ticket, now)
                else:
                    self._breaker.succeeded(asked.ticket, now)
                after = self._breaker.state
            self._report(before, after)
            asked.done(vector)

    def _report(self, before: State, after: State) -> None:
        """Tell people of each change once."""
        if after is before:
            return
        if after is State.CLOSED:
            self._counters.faults.pop(FAULT, None)
            self._log.info("embedder answers again")
        elif before is State.CLOSED:
            self._counters.faults[FAULT] = (
                f"{self._reason}; recall goes on with words alone, and asks again every {self._retry_s:g} s"
            )
            self._log.error("embedder left alone", reason=self._reason, retry_s=self._retry_s)


async def embed_texts(embedder: Embedder, texts: list[str]) -> Vectors:
    """`embedder.embed` in a thread of its own, which nobody waits for when this is cancelled. Raises what it raises."""
    loop = asyncio.get_running_loop()
    embedded: asyncio.Future[Vectors] = loop.create_future()

    def finish(vectors: Vectors | None, error: BaseException | None) -> None:
        if embedded.done():
            return
        if error is not None:
            embedded.set_exception(error)
        elif vectors is not None:
            embedded.set_result(vectors)

    def run() -> None:
        vectors: Vectors | None = None
        error: BaseException | None = None
        try:
            vectors = embedder.embed(texts)
        except Exception as e:
            error = e
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(finish, vectors, error)

    threading.Thread(target=run, name="embedder-texts", daemon=True).start()
    return await embedded
