"""The link to the daemon: both directions of the bus as one thing that comes up by itself and comes back by itself."""

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

from .buffer import EVENTS_MAX, ResendBuffer
from .messages import MESSAGE_BYTES_MAX, VERSION, Map, Recall, decode, encode, recall_of
from .sp import Pipe, Protocol, dial

BACKOFF_MIN_S, BACKOFF_MAX_S = 0.01, 1.0
HELLO_S = 0.1
"""Between two hellos while none was answered: the first message on a connection can be lost."""
BATCH_BYTES = 64 * 1024
"""Written at a time: what asyncio buffers before it makes a writer wait, and little for a question to wait behind."""
BACKLOG_BYTES_MAX = 1024 * 1024
"""Questions are not queued behind more than this: the daemon has stopped reading."""
REFUSED = frozenset({"E_MALFORMED", "E_TOO_LARGE", "E_VERSION", "E_ENVELOPE"})
"""Errors after which the same event would be refused again, for ever."""

Notice = Callable[[Map], None]
log = logging.getLogger("recalld_client")


class Link:
    """Keeps `events` and `context` connected, what was emitted on its way, and the questions that are open.

    Made before there is an event loop; `run` binds it to one. Only `emit` may be called in other threads.
    """

    def __init__(self, src: str, runtime_dir: Path, buffer: ResendBuffer, on_notice: Notice | None) -> None:
        self.welcomed = False
        self.limits: Map = {}
        self.message_bytes_max = MESSAGE_BYTES_MAX
        self._src = src
        self._runtime_dir = runtime_dir
        self._buffer = buffer
        self._lock = threading.Lock()  # around the buffer
        self._on_notice = on_notice
        self._topic = f"ctx/{src}".encode() + b"\0"
        self._hellos = 0
        self._first_hello = 0  # of this connection: a welcome to an earlier one proves nothing
        self._events: Pipe | None = None
        self._asked: dict[str, asyncio.Future[Recall]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._wake = asyncio.Event()  # the writer has something to do
        self._woken = False
        self._progress = asyncio.Event()  # set and replaced at each welcome and acknowledgement

    def emit(self, body: bytes | None, ts: int | None = None) -> int:
        """Number and keep an event, given as the rest of its envelope. 0 when there is none or it is too long."""
        with self._lock:
            seq = self._buffer.next_seq
            ts = now_ms() if ts is None else ts
            head = f'{{"v":{VERSION},"id":"e{seq}","seq":{seq},"src":"{self._src}","ts":{ts},'.encode()
            if body is None or len(head) + len(body) > self.message_bytes_max:
                self._buffer.refuse()
                return 0
            self._buffer.add(head + body)
        self._wake_writer()
        return seq

    def ask(self, question: str, message: bytes) -> asyncio.Future[Recall]:
        """Send a question behind what was emitted before it, unless that is more than a batch. To be followed by
        `forget`."""
        answer: asyncio.Future[Recall] = asyncio.get_running_loop().create_future()
        pipe = self._events
        if pipe is None or not self.welcomed:
            answer.set_result(Recall("unavailable", reason="not connected"))
        elif pipe.backlog > BACKLOG_BYTES_MAX:
            answer.set_result(Recall("unavailable", reason="the daemon does not read"))
        else:
            self._pump(pipe)
            pipe.write(message)
            self._asked[question] = answer
        return answer

    def forget(self, question: str) -> None:
        """Drop the answer to a question if it still comes."""
        self._asked.pop(question, None)

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds until a welcome or an acknowledgement makes `condition` true."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await self._progress.wait()
        return condition()

    async def run(self) -> None:
        """Keep the link up until cancelled. Raises nothing else."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        pause_s = BACKOFF_MIN_S
        try:
            while True:
                try:
                    await self._connect()
                except* OSError as errors:
                    log.debug("no link: %s", errors.exceptions[0])
                except* Exception:  # a defect here must not become the host's
                    log.exception("the link failed")
                if self.welcomed:
                    pause_s = BACKOFF_MIN_S
                self._disconnect()
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(pause_s * 2, BACKOFF_MAX_S)
        finally:
            self._loop = None
            self._disconnect()

    async def _connect(self) -> None:
        async with (
            contextlib.aclosing(await dial(self._runtime_dir / "context.ipc", Protocol.SUB)) as context,
            contextlib.aclosing(await dial(self._runtime_dir / "events.ipc", Protocol.PUB)) as events,
        ):
            self._first_hello = self._hellos + 1
            self._events = events
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(context), name="recalld context")
                tasks.create_task(self._watch(events), name="recalld events")
                tasks.create_task(self._write(events), name="recalld writer")

    def _disconnect(self) -> None:
        self._events = None
        self.welcomed = False
        for answer in self._asked.values():
            if not answer.done():
                answer.set_result(Recall("unavailable", reason="the connection ended"))
        self._asked.clear()

    async def _read(self, pipe: Pipe) -> None:
        while True:
            body = await pipe.read()
            # Everybody's answers arrive here; only ours are worth parsing.
            if body.startswith(self._topic):
                self._hear(body[len(self._topic) :])

    async def _watch(self, pipe: Pipe) -> None:
        while True:  # nothing is ever said on this side; reading is how its end is seen
            await pipe.read()

    async def _write(self, pipe: Pipe) -> None:
        loop = asyncio.get_running_loop()
        hello_at = 0.0
        while True:
            self._wake.clear()
            self._woken = False
            now, more = loop.time(), False
            if self.welcomed:
                with self._lock:
                    self._buffer.handle_timer(now)
                more = self._pump(pipe)
            with self._lock:
                hello = not self.welcomed or self._buffer.unsettled
                timer = self._buffer.next_timer() if self.welcomed else None
            if hello:
                if now >= hello_at:
                    pipe.write(self._hello())
                    hello_at = now + HELLO_S
                timer = min(hello_at, timer or hello_at)
            await pipe.drain()
            await asyncio.sleep(0)  # drain does not yield while the socket takes everything
            if not more:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(timer):
                        await self._wake.wait()

    def _pump(self, pipe: Pipe) -> bool:
        """Write one batch if the socket has room. True when there may be more."""
        if pipe.backlog > BATCH_BYTES:
            return True
        with self._lock:
            batch = self._buffer.take(BATCH_BYTES, asyncio.get_running_loop().time())
        pipe.write(*batch)
        return bool(batch)

    def _wake_writer(self) -> None:
        loop = self._loop
        if loop is None or self._woken:
            return
        self._woken = True
        if threading.get_ident() == self._thread:
            self._wake.set()
        else:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody is left to write
                loop.call_soon_threadsafe(self._wake.set)

    def _hello(self) -> bytes:
        self._hellos += 1
        with self._lock:
            event = {"client": "recalld-client/python", "oldest": self._buffer.oldest, "lost": self._buffer.lost}
        hello = {"v": VERSION, "type": "hello", "id": f"h{self._hellos}", "src": self._src, "ts": now_ms()}
        return encode(hello | {"event": event})

    def _hear(self, payload: bytes) -> None:
        answer = decode(payload)
        if answer is None:
            return
        match answer.get("type"):
            case "ack":
                self._settle(answer, fresh=False)
            case "context":
                self._answer(answer.get("re"), recall_of(answer))
            case "welcome":
                number = _number("h", answer.get("re"))
                if number is not None and number >= self._first_hello:
                    self._welcome(answer)
            case "captured":
                self._notify(answer)
            case "error":
                self._refused(answer)

    def _welcome(self, answer: Map) -> None:
        limits = answer.get("limits")
        self.limits = limits if isinstance(limits, dict) else {}
        self.message_bytes_max = min(MESSAGE_BYTES_MAX, _bound(self.limits.get("message_bytes_max")))
        self._buffer.window = min(EVENTS_MAX, _bound(self.limits.get("unacked_max")))
        fresh, self.welcomed = not self.welcomed, True
        self._settle(answer, fresh=fresh)
        self._notify(answer)

    def _settle(self, answer: Map, *, fresh: bool) -> None:
        upto, highest = answer.get("upto"), answer.get("highest")
        if isinstance(upto, int) and upto >= 0:
            now = asyncio.get_running_loop().time()
            with self._lock:
                if fresh:
                    self._buffer.welcome(upto, now)
                else:
                    self._buffer.ack(upto, highest if isinstance(highest, int) else upto, now)
        self._wake_writer()
        progress, self._progress = self._progress, asyncio.Event()
        progress.set()

    def _answer(self, re: object, recall: Recall) -> None:
        answer = self._asked.pop(re, None) if isinstance(re, str) else None
        if answer is not None and not answer.done():
            answer.set_result(recall)

    def _refused(self, error: Map) -> None:
        code, seq = str(error.get("code")), _number("e", error.get("re"))
        if seq is not None and code in REFUSED:
            with self._lock:
                self._buffer.give_up(seq)
            self._wake_writer()
        self._answer(error.get("re"), Recall("error", reason=code))
        self._notify(error)

    def _notify(self, answer: Map) -> None:
        if self._on_notice is not None:
            try:
                self._on_notice(answer)
            except Exception:
                log.exception("on_notice failed")


def now_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


def _number(kind: str, id: object) -> int | None:
    """The number in an id that this client made: `e12` is event 12, `h3` hello 3."""
    if isinstance(id, str) and id.startswith(kind) and id[1:].isascii() and id[1:].isdigit():
        return int(id[1:16])
    return None


def _bound(value: object) -> int:
    return value if isinstance(value, int) and value >= 1 else 2**63
