"""The client: the calls of a gateway, on a link to the daemon that heals itself."""

import asyncio
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .buffer import EVENTS_MAX, ResendBuffer
from .link import Link, Notice, log, now_ms
from .messages import VERSION, Map, Recall, RecalldUnavailable, encode, event_body, last_turn
from .rpc import Rpc

TTL_MS_MAX = 60_000


def default_runtime_dir() -> Path:
    """The folder of the daemon's sockets: $RECALLD_RUNTIME_DIR, else `recalld` in the user's runtime folder."""
    if own := os.environ.get("RECALLD_RUNTIME_DIR"):
        return Path(own)
    return Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}") / "recalld"


class Client:
    """Tells recalld what happens and asks it what matters. An async context manager; it belongs to one event loop.

    Entering never fails and never waits: the link comes up when there is a daemon, and comes back when it went away.
    Leaving waits up to `close_timeout_s` seconds for what was emitted to be acknowledged.

    - `name`: readable part of `src`: 1 to 119 of `A-Z a-z 0-9 . _ : -`, the first a letter or digit. ValueError if not.
    - `runtime_dir`: the folder of the daemon's sockets (`default_runtime_dir`).
    - `rpc_address`: host and port for the tools, instead of the socket. Needs `token`, or `token_file`, which is
      `rpc.token` in the runtime folder if left out.
    - `events_max`: unacknowledged events kept; what overflows is counted in `lost`, the oldest first.
    - `margin_ms`: how much longer than its `ttl_ms` a question may take until the client answers itself.
    - `timeout_s`: seconds a tool may take.
    - `on_notice`: is given each `welcome`, `captured` and `error` of the daemon, in the event loop. Must not block.
    """

    def __init__(
        self,
        name: str = "python",
        runtime_dir: str | os.PathLike[str] | None = None,
        *,
        rpc_address: tuple[str, int] | None = None,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        events_max: int = EVENTS_MAX,
        margin_ms: float = 20,
        timeout_s: float = 5.0,
        close_timeout_s: float = 1.0,
        on_notice: Notice | None = None,
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,118}", name):
            raise ValueError(f"name {name!r} is not 1 to 119 of A-Z a-z 0-9 . _ : - with a letter or digit first")
        self.src = f"{name}-{secrets.token_hex(4)}"
        self.runtime_dir = Path(runtime_dir) if runtime_dir is not None else default_runtime_dir()
        self._rpc_address = rpc_address
        self._token = token
        self._token_file = Path(token_file) if token_file is not None else self.runtime_dir / "rpc.token"
        self._margin_ms = margin_ms
        self._timeout_s = timeout_s
        self._close_timeout_s = close_timeout_s
        self._buffer = ResendBuffer(events_max=events_max)
        self._link = Link(self.src, self.runtime_dir, self._buffer, on_notice)
        self._questions = 0
        self._task: asyncio.Task[None] | None = None
        self._rpc: Rpc | None = None

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RuntimeError("a client is entered once: its src is one life")
        self._rpc = Rpc(self._rpc_address or self.runtime_dir / "rpc.ipc", self._read_token)
        self._task = asyncio.create_task(self._link.run(), name=f"recalld link of {self.src}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        assert self._rpc is not None
        try:
            await self.flush(self._close_timeout_s)
        finally:
            self._task.cancel()
            rpc, self._rpc = self._rpc, None
            try:
                await rpc.aclose()
            finally:
                await asyncio.wait({self._task})

    @property
    def connected(self) -> bool:
        """True while the daemon's welcome to the present connection holds: both directions work."""
        return self._link.welcomed

    @property
    def limits(self) -> Map:
        """What the daemon told in its last welcome; empty before the first."""
        return self._link.limits

    @property
    def pending(self) -> int:
        """Events that are not acknowledged yet."""
        return len(self._buffer)

    @property
    def lost(self) -> int:
        """Events given up so far: overflown, refused by the daemon, or never fit to be sent."""
        return self._buffer.lost

    def emit(self, type: str, event: Mapping[str, Any], ctx: Mapping[str, Any], *, ts: int | None = None) -> int:
        """Tell the daemon of one event and give its seq. Never waits, never raises; may be called in any thread.

        The event is kept until it is on the daemon's disk. One that cannot be sent (not to be written as JSON, over
        4 MiB, not an event that is kept) is counted in `lost`, and its seq is 0. `ts` is when it happened (Unix ms), now
        if left out.
        """
        try:
            body: bytes | None = event_body(type, event, ctx)
        except Exception:  # a payload's own methods may raise anything, and the host must go on
            log.warning("an event was refused", exc_info=True)
            body = None
        return self._link.emit(body, ts)

    async def recall(
        self,
        prompt: str,
        ctx: Mapping[str, Any],
        ttl_ms: int = 100,
        messages: Sequence[Any] | None = None,
        *,
        ts: int | None = None,
    ) -> Recall:
        """What the daemon knows that matters for `prompt`, within `ttl_ms` (1 to 60000) milliseconds and a margin.
        `ts` is when it was asked (Unix ms), now if left out.

        Never raises, except when it is cancelled. Without a daemon it answers at once, with status `unavailable`.
        What was emitted before is ahead of the question, unless more than a batch of it waits.
        """
        started = time.monotonic()
        if not self._link.welcomed:
            return Recall("unavailable", reason="not connected")
        self._questions += 1
        question = f"q{self._questions}"
        try:
            ttl_ms = max(1, min(int(ttl_ms), TTL_MS_MAX))
            message = self._question(question, prompt, ctx, ttl_ms, messages, ts)
        except Exception:
            log.warning("a question was refused", exc_info=True)
            return Recall("error", reason="E_MALFORMED")
        if len(message) > self._link.message_bytes_max:
            return Recall("error", reason="E_TOO_LARGE")
        try:
            async with asyncio.timeout((ttl_ms + self._margin_ms) / 1000):
                return await self._link.ask(question, message)
        except TimeoutError:
            return Recall("timeout", elapsed_ms=(time.monotonic() - started) * 1000)
        finally:
            self._link.forget(question)

    async def search(
        self, query: str, ctx: Mapping[str, Any], limit: int = 10, *, timeout_s: float | None = None
    ) -> Map:
        """The best `limit` (1 to 100) memories for a query of 1 to 8192 characters, without a floor: `memories`,
        `status`, `elapsed_ms`. Like all tools it raises RecalldError when the daemon refuses, and RecalldUnavailable
        when it does not answer in `timeout_s` seconds."""
        return await self._call("search", ctx, {"query": query, "limit": limit}, timeout_s)

    async def get(self, id: str, ctx: Mapping[str, Any], *, timeout_s: float | None = None) -> Map:
        """One `memory`, the `turn` it came from, and its `uses`. Raises as `search` does; `E_NOT_FOUND` if the agent has none."""
        return await self._call("get", ctx, {"id": id}, timeout_s)

    async def store(
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
        """Remember a text of 1 to 16384 characters: its `id`, and `stored`, false where it was known. On disk on
        return. The attributes are those of the protocol's section 8. Raises as `search` does."""
        attributes = {"importance": importance, "decay": decay, "pinned": pinned, "entity": entity}
        given = {name: value for name, value in attributes.items() if value is not None}
        return await self._call("store", ctx, {"text": text, "category": category, **given}, timeout_s)

    async def forget(self, id: str, ctx: Mapping[str, Any], *, timeout_s: float | None = None) -> Map:
        """Forget a memory or a turn: `forgotten`, the ids that are gone. Raises as `search` does."""
        return await self._call("forget", ctx, {"id": id}, timeout_s)

    async def explain(
        self, ctx: Mapping[str, Any], id: str | None = None, last: int = 1, *, timeout_s: float | None = None
    ) -> Map:
        """How answered prompts of this agent came about: `recalls`, the one with this id, else the `last` (1 to 50), the
        latest first. Raises as `search` does; `E_NOT_FOUND` if the log has none."""
        return await self._call("explain", ctx, {"id": id, "last": last}, timeout_s)

    async def replay_recall(
        self,
        ctx: Mapping[str, Any],
        id: str | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Map:
        """Ask a logged prompt again, the latest without an id, with other `settings` of the configuration's `[recall]`:
        `then`, `now`, `entered`, `left`. Raises as `explain` does."""
        return await self._call("replay_recall", ctx, {"id": id, "settings": dict(settings or {})}, timeout_s)

    async def status(self, *, timeout_s: float | None = None) -> Map:
        """Counts, latencies and faults of the daemon. Raises as `search` does."""
        return await self._call("status", None, {}, timeout_s)

    async def reindex(self, ctx: Mapping[str, Any], what: str = "all", *, timeout_s: float | None = None) -> Map:
        """Have the indexes of an agent's memories made anew, `words`, `vectors` or `all`: minutes for a million memories,
        during which the old ones serve. Raises as `search` does."""
        return await self._call("reindex", ctx, {"what": what}, timeout_s)

    async def drain(self, *, timeout_s: float | None = None) -> Map:
        """Close the open turns (`closed`); they are stored and findable on return. Raises as `search` does."""
        return await self._call("drain", None, {}, timeout_s)

    async def toggle(
        self,
        state: str,
        ctx: Mapping[str, Any] | None = None,
        scope: str = "session",
        *,
        timeout_s: float | None = None,
    ) -> Map:
        """Turn memory `on` or `off` in the session of `ctx`, or in all with the scope `global`; `status` changes nothing.
        Gives what holds then: `global` and, where `ctx` names a session, `session`. Raises as `search` does."""
        return await self._call("toggle", ctx, {"state": state, "scope": scope}, timeout_s)

    async def publish(self, events: Sequence[Mapping[str, Any]], *, timeout_s: float | None = None) -> Map:
        """Hand over 1 to 100 whole envelopes of kept events; gives `upto` of each `src`. On disk on return. Raises as
        `search` does."""
        return await self._call("publish", None, {"events": [dict(event) for event in events]}, timeout_s)

    async def ready(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds for the daemon's welcome. True when `connected`."""
        return await self._link.until(lambda: self._link.welcomed, timeout_s)

    async def flush(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds. True when everything emitted before the call is acknowledged, but for what
        is counted in `lost`."""
        target = self._buffer.next_seq
        return await self._link.until(lambda: self._buffer.oldest >= target, timeout_s)

    async def _call(self, op: str, ctx: Mapping[str, Any] | None, params: Map, timeout_s: float | None) -> Map:
        if self._rpc is None:
            raise RecalldUnavailable(f"{op}: the client is not entered")
        return await self._rpc.call(op, ctx, params, timeout_s=self._timeout_s if timeout_s is None else timeout_s)

    def _read_token(self) -> str | None:
        if self._rpc_address is None or self._token is not None:
            return self._token
        return self._token_file.read_text().strip()

    def _question(
        self,
        id: str,
        prompt: str,
        ctx: Mapping[str, Any],
        ttl_ms: int,
        messages: Sequence[Any] | None,
        ts: int | None,
    ) -> bytes:
        event: Map = {"prompt": prompt}
        if messages is not None:
            event["messages"] = last_turn(messages)
        ts = now_ms() if ts is None else ts
        envelope = {"v": VERSION, "type": "before_prompt_build", "id": id, "src": self.src, "ts": ts}
        return encode(envelope | {"ttl_ms": ttl_ms, "ctx": dict(ctx), "event": event})
