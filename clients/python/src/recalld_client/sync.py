"""The same client for code that does not use asyncio: it runs on a thread of its own."""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from .client import TTL_MS_MAX, Client
from .messages import Map, Recall, RecalldUnavailable

T = TypeVar("T")
SLACK_S = 1.0
"""The client's own timers answer first; this is for a thread that is kept from running them."""


class SyncClient:
    """A `Client` (same arguments) behind blocking calls. A context manager; may be used from any number of threads.

    Entering starts a daemon thread and never waits for the daemon. Leaving waits up to `close_timeout_s` seconds for
    what was emitted to be acknowledged, then ends the thread.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._client = Client(*args, **kwargs)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._timeout_s: float = kwargs.get("timeout_s", 5.0)
        self._margin_ms: float = kwargs.get("margin_ms", 20)

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise RuntimeError("the client is entered already")
        started = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(started)), name=f"recalld {self._client.src}", daemon=True
        )
        self._thread.start()
        started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing to stop
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._thread = None

    @property
    def src(self) -> str:
        """This client's name on the bus."""
        return self._client.src

    @property
    def limits(self) -> Map:
        """What the daemon told in its last welcome."""
        return self._client.limits

    @property
    def connected(self) -> bool:
        """As `Client.connected`."""
        return self._client.connected

    @property
    def pending(self) -> int:
        """As `Client.pending`."""
        return self._client.pending

    @property
    def lost(self) -> int:
        """As `Client.lost`."""
        return self._client.lost

    def emit(self, type: str, event: Mapping[str, Any], ctx: Mapping[str, Any], *, ts: int | None = None) -> int:
        """As `Client.emit`."""
        return self._client.emit(type, event, ctx, ts=ts)

    def recall(
        self,
        prompt: str,
        ctx: Mapping[str, Any],
        ttl_ms: int = 100,
        messages: Sequence[Any] | None = None,
        *,
        ts: int | None = None,
    ) -> Recall:
        """As `Client.recall`: never raises."""
        try:
            wait_s = (min(ttl_ms, TTL_MS_MAX) + self._margin_ms) / 1000
            return self._call(self._client.recall(prompt, ctx, ttl_ms, messages, ts=ts), wait_s)
        except RecalldUnavailable as error:
            return Recall("unavailable", reason=error.message)
        except TimeoutError:
            return Recall("timeout")
        except Exception as error:  # a ttl_ms that is no number
            return Recall("error", reason=str(error))

    def search(self, query: str, ctx: Mapping[str, Any], limit: int = 10, *, timeout_s: float | None = None) -> Map:
        """As `Client.search`."""
        return self._tool(self._client.search(query, ctx, limit, timeout_s=timeout_s), timeout_s)

    def get(self, id: str, ctx: Mapping[str, Any], *, timeout_s: float | None = None) -> Map:
        """As `Client.get`."""
        return self._tool(self._client.get(id, ctx, timeout_s=timeout_s), timeout_s)

    def store(
        self,
        text: str,
        ctx: Mapping[str, Any],
        category: str = "note",
        *,
        importance: float | None = None,
        decay: str | None = None,
        pinned: bool | None = None,
        entity: str | None = None,
        timeout_s: float | None = None,
    ) -> Map:
        """As `Client.store`."""
        call = self._client.store(
            text,
            ctx,
            category,
            importance=importance,
            decay=decay,
            pinned=pinned,
            entity=entity,
            timeout_s=timeout_s,
        )
        return self._tool(call, timeout_s)

    def forget(self, id: str, ctx: Mapping[str, Any], *, timeout_s: float | None = None) -> Map:
        """As `Client.forget`."""
        return self._tool(self._client.forget(id, ctx, timeout_s=timeout_s), timeout_s)

    def explain(
        self, ctx: Mapping[str, Any], id: str | None = None, last: int = 1, *, timeout_s: float | None = None
    ) -> Map:
        """As `Client.explain`."""
        return self._tool(self._client.explain(ctx, id, last, timeout_s=timeout_s), timeout_s)

    def replay_recall(
        self,
        ctx: Mapping[str, Any],
        id: str | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Map:
        """As `Client.replay_recall`."""
        return self._tool(self._client.replay_recall(ctx, id, settings, timeout_s=timeout_s), timeout_s)

    def status(self, *, timeout_s: float | None = None) -> Map:
        """As `Client.status`."""
        return self._tool(self._client.status(timeout_s=timeout_s), timeout_s)

    def reindex(self, ctx: Mapping[str, Any], what: str = "all", *, timeout_s: float | None = None) -> Map:
        """As `Client.reindex`."""
        return self._tool(self._client.reindex(ctx, what, timeout_s=timeout_s), timeout_s)

    def drain(self, *, timeout_s: float | None = None) -> Map:
        """As `Client.drain`."""
        return self._tool(self._client.drain(timeout_s=timeout_s), timeout_s)

    def toggle(
        self,
        state: str,
        ctx: Mapping[str, Any] | None = None,
        scope: str = "session",
        *,
        timeout_s: float | None = None,
    ) -> Map:
        """As `Client.toggle`."""
        return self._tool(self._client.toggle(state, ctx, scope, timeout_s=timeout_s), timeout_s)

    def publish(self, events: Sequence[Mapping[str, Any]], *, timeout_s: float | None = None) -> Map:
        """As `Client.publish`."""
        return self._tool(self._client.publish(events, timeout_s=timeout_s), timeout_s)

    def ready(self, timeout_s: float) -> bool:
        """As `Client.ready`."""
        return self._wait(self._client.ready(timeout_s), timeout_s)

    def flush(self, timeout_s: float) -> bool:
        """As `Client.flush`."""
        return self._wait(self._client.flush(timeout_s), timeout_s)

    def _wait(self, waiting: Coroutine[Any, Any, bool], timeout_s: float) -> bool:
        try:
            return self._call(waiting, timeout_s)
        except (RecalldUnavailable, TimeoutError):
            return False

    def _tool(self, call: Coroutine[Any, Any, Map], timeout_s: float | None) -> Map:
        try:
            return self._call(call, self._timeout_s if timeout_s is None else timeout_s)
        except TimeoutError as error:
            raise RecalldUnavailable("the client's thread does not run") from error

    def _call(self, call: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Raises TimeoutError, and RecalldUnavailable outside of the context."""
        loop, future = self._loop, None
        with contextlib.suppress(RuntimeError):  # the loop was closed just now
            future = asyncio.run_coroutine_threadsafe(call, loop) if loop is not None else None
        if future is None:
            call.close()
            raise RecalldUnavailable("the client is not entered")
        try:
            return future.result(timeout_s + SLACK_S)
        except concurrent.futures.CancelledError as error:
            raise RecalldUnavailable("the client was closed") from error
        finally:
            future.cancel()  # on KeyboardInterrupt or a timeout nobody waits any more

    async def _run(self, started: threading.Event) -> None:
        async with self._client:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            started.set()
            await self._stop.wait()
        self._loop = None
