"""Operations with a direct answer: tools, administration, and recall and publish for callers without a subscription."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol
from uuid import uuid4

import msgspec

from recalld import log
from recalld.config import Config
from recalld.core.clean import clean
from recalld.core.scope import scope_of
from recalld.edge.store import Store
from recalld.edge.units import EVERYWHERE, Attributes, MemoryRow
from recalld.errors import StorageError
from recalld.service.counters import Counters
from recalld.service.explaining import Explaining
from recalld.service.ingest import Ingest
from recalld.service.memories import Memories
from recalld.service.notices import now_ms
from recalld.service.question import Question
from recalld.service.recall import Recall
from recalld.service.recall_log import RecallLog
from recalld.service.toggles import SESSIONS_MAX, Toggles
from recalld.wire import messages as m
from recalld.wire import operations as o
from recalld.wire.codec import check_event, convert, decode_request, encode, sender_of
from recalld.wire.errors import REMEDY, Code, ProtocolError

SEARCH_TTL_MS = 1_000  # a tool call waits longer than a prompt does


class Reindex(Protocol):
    """Make the indexes of a namespace anew. Raises StorageError."""

    def __call__(self, namespace: str, *, words: bool, vectors: bool) -> Awaitable[None]: ...


Handler = Callable[[m.Request, Any], Awaitable[msgspec.Struct]]


class RpcService:
    def __init__(
        self,
        *,
        store: Store,
        memories: Memories,
        recall: Recall,
        recall_log: RecallLog,
        ingest: Ingest,
        toggles: Toggles,
        counters: Counters,
        config: Callable[[], Config],
        status: Callable[[], Awaitable[o.StatusResult]],
        drain: Callable[[], Awaitable[int]],
        reindex: Reindex,
        token: str | None,
    ) -> None:
        self._store = store
        self._memories = memories
        self._recall = recall
        self._recall_log = recall_log
        self._ingest = ingest
        self._toggles = toggles
        self._counters = counters
        self._config = config
        self._status = status
        self._drain = drain
        self._make_anew = reindex
        self._token = token
        self._log = log.get("rpc")
        explaining = Explaining(store, recall, recall_log, config)
        self._handlers: dict[str, Handler] = {
            "search": self._search,
            "get": self._get,
            "store": self._store_note,
            "forget": self._forget,
            "status": self._get_status,
            "publish": self._publish,
            "recall": self._get_context,
            "explain": explaining.explain,
            "replay_recall": explaining.replay,
            "drain": self._drain_turns,
            "reindex": self._reindex,
            "toggle": self._toggle,
        }

    async def handle(self, data: bytes, is_tcp: bool) -> bytes:
        """The reply to one request, whatever the request is. Never raises."""
        sender = sender_of(data)
        try:
            request, _ = decode_request(data)
            result = await self._dispatch(request, is_tcp)
            reply = m.Reply(v=m.PROTOCOL_VERSION, re=request.id, ok=True, result=msgspec.to_builtins(result))
        except ProtocolError as e:
            reply = self._error(sender.id, e.code, e.message)
        except StorageError as e:
            reply = self._error(sender.id, Code.STORAGE, str(e))
        except Exception:
            self._log.exception("request failed")
            reply = self._error(sender.id, Code.INTERNAL, "the request could not be served")
        return encode(reply, sender.encoding)

    def _error(self, re: str | None, code: Code, message: str) -> m.Reply:
        self._counters.errors[code.value] += 1
        error = m.ErrorBody(code, message, REMEDY[code])
        if code is Code.VERSION:
            error.supported = list(m.SUPPORTED_VERSIONS)
        return m.Reply(v=m.PROTOCOL_VERSION, re=re, ok=False, error=error)

    async def _dispatch(self, request: m.Request, is_tcp: bool) -> msgspec.Struct:
        if is_tcp and not hmac.compare_digest((request.token or "").encode(), (self._token or "").encode()):
            raise ProtocolError(Code.TOKEN, "the token is missing or wrong")
        if request.op not in o.OPERATIONS:
            raise ProtocolError(Code.UNKNOWN_OP, f"operation `{request.op}` is not known")
        if self._ingest.draining and request.op != "status":
            raise ProtocolError(Code.DRAINING, "the daemon is stopping")
        params = convert(request.params, o.OPERATIONS[request.op][0])
        return await self._handlers[request.op](request, params)

    def _namespace(self, request: m.Request) -> str:
        scope = scope_of(request.ctx, self._config().shared)
        if scope is None:
            raise ProtocolError(Code.SCOPE, f"`{request.op}` needs an agent in ctx")
        return scope.namespace

    # -- operations

    async def _search(self, request: m.Request, params: o.SearchParams) -> o.SearchResult:
        namespace = self._namespace(request)
        query = clean(params.query, m.QUERY_CHARS_MAX)
        started = time.monotonic()
        deadline = started + (request.ttl_ms or SEARCH_TTL_MS) / 1000
        body = await self._asked(
            lambda answer: self._recall.ask(
                Question(
                    f"rpc {uuid4().hex}",
                    namespace,
                    query,
                    started,
                    deadline,
                    answer,
                    self._config().recall,
                    limit=params.limit,
                )
            )
        )
        if body.status == "error":
            raise ProtocolError(Code(body.reason or Code.INTERNAL), "the search was not finished")
        return o.SearchResult(body.memories, body.elapsed_ms, body.status)

    async def _get_context(self, request: m.Request, params: o.RecallParams) -> m.ContextBody:
        scope = scope_of(request.ctx, self._config().shared)
        if scope is None or scope.session is None:
            raise ProtocolError(Code.SCOPE, "`recall` needs an agent and a session in ctx")
        event = m.Event(
            v=m.PROTOCOL_VERSION,
            type=m.QUESTION,
            id=uuid4().hex,
            src="rpc",
            ts=now_ms(),
            ttl_ms=request.ttl_ms,
            ctx=request.ctx,
            event={"prompt": params.prompt, "messages": params.messages},
        )
        started = time.monotonic()
        return await self._asked(lambda answer: self._ingest.ask(event, started, answer))

    async def _asked(self, ask: Callable[[Callable[[m.ContextBody], None]], None]) -> m.ContextBody:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[m.ContextBody] = loop.create_future()

        def answer(body: m.ContextBody) -> None:
            loop.call_soon_threadsafe(lambda: None if answered.done() else answered.set_result(body))

        ask(answer)
        return await answered

    async def _get(self, request: m.Request, params: o.GetParams) -> o.GetResult:
        memory = await self._store.memory(self._namespace(request), _number(params.id))
        if memory is None:
            raise ProtocolError(Code.NOT_FOUND, f"memory {params.id} is not known")
        turn = await self._store.turn(memory.turn_id) if memory.turn_id is not None else None
        runs = await self._store.runs_of(turn.id) if turn else []
        uses, last_used_ms = await self._store.uses(memory.id)
        return o.GetResult(
            uses=uses,
            last_used_ms=last_used_ms,
            memory=_shown(memory, turn.session if turn else None, runs),
            attributes=_attributes(memory),
            turn=None
            if turn is None
            else o.Turn(
                id=turn.id,
                session=turn.session,
                run_ids=runs,
                opened_ms=turn.opened_ms,
                closed_ms=turn.closed_ms,
                status=turn.status,
                closed_by=turn.closed_by,
                user=turn.user,
                assistant=turn.assistant,
                session_id=turn.session_id,
                transcript=turn.transcript,
            ),
        )

    async def _store_note(self, request: m.Request, params: o.StoreParams) -> o.StoreResult:
        namespace = self._namespace(request)
        text = clean(params.text)
        if not text:
            raise ProtocolError(Code.PARAMS, "text: nothing is left of it once envelopes and private spans are removed")
        given = {f: getattr(params, f) for f in ("importance", "decay", "pinned", "entity")}
        attributes = Attributes(**{f: value for f, value in given.items() if value is not None})
        memory_id, stored = await self._memories.store_note(namespace, text, params.category, now_ms(), attributes)
        return o.StoreResult(f"m{memory_id}", stored)

    async def _forget(self, request: m.Request, params: o.ForgetParams) -> o.ForgetResult:
        await self._recall_log.write()  # so that nothing about it comes to the log later
        ids = await self._memories.forget(self._namespace(request), _number(params.id))
        if ids is None:
            raise ProtocolError(Code.NOT_FOUND, f"memory {params.id} is not known")
        return o.ForgetResult([f"m{i}" for i in ids])

    async def _get_status(self, request: m.Request, params: o.StatusParams) -> o.StatusResult:
        return await self._status()

    async def _publish(self, request: m.Request, params: o.PublishParams) -> o.PublishResult:
        for event in params.events:
            try:
                check_event(event)
            except ProtocolError as e:
                raise ProtocolError(Code.PARAMS, f"events: {e.message}") from None
            if event.seq is None:
                raise ProtocolError(
                    Code.PARAMS, f"events: `{event.type}` is not kept: only kept types are published here"
                )
        return o.PublishResult(await self._ingest.publish_events(params.events))

    async def _reindex(self, request: m.Request, params: o.ReindexParams) -> o.ReindexResult:
        started = time.monotonic()
        await self._make_anew(self._namespace(request), words=params.what != "vectors", vectors=params.what != "words")
        return o.ReindexResult(round(time.monotonic() - started, 3))

    async def _drain_turns(self, request: m.Request, params: o.DrainParams) -> o.DrainResult:
        return o.DrainResult(await self._drain())

    async def _toggle(self, request: m.Request, params: o.ToggleParams) -> o.ToggleResult:
        scope = scope_of(request.ctx, self._config().shared)
        session = (scope.agent, scope.session) if scope is not None and scope.session is not None else None
        if params.scope == "session" and session is None:
            raise ProtocolError(Code.SCOPE, "`toggle` of a session needs an agent and a session in ctx")
        place = session if params.scope == "session" and session is not None else EVERYWHERE
        if params.state == "off" and place is session and self._toggles.session(session) and self._toggles.full:
            raise ProtocolError(Code.PARAMS, f"state: {SESSIONS_MAX} sessions are off already; turn one on first")
        if params.state != "status":
            await self._toggles.turn(place, on=params.state == "on")
        return o.ToggleResult(
            all=_switch(self._toggles.everywhere),
            session=_switch(self._toggles.session(session)) if session is not None else None,
        )


def _switch(on: bool) -> o.Switch:
    return "on" if on else "off"


def _number(memory_id: str) -> int:
    return int(memory_id[1:])


def _shown(row: MemoryRow, session: str | None, runs: list[str]) -> m.Memory:
    return m.Memory(
        id=f"m{row.id}",
        kind=row.kind,  # type: ignore[arg-type]  # the record holds only these kinds
        text=row.text,
        created_ms=row.created_ms,
        category=row.category,
        session_key=session,
        run_ids=runs,
        turn_id=row.turn_id,
    )


def _attributes(row: MemoryRow) -> o.Attributes:
    return o.Attributes(
        importance=row.importance,
        confidence=row.confidence,
        decay=row.decay,
        pinned=bool(row.pinned),
        expires_ms=row.expires_ms,
        superseded_by=None if row.superseded_by is None else f"m{row.superseded_by}",
        entity=row.entity,
        source=row.source,
    )
