"""Why something was injected: logged recalls told, and asked again under other settings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from uuid import uuid4

from recalld.config import Config, changed_recall
from recalld.core.scope import Scope, scope_of
from recalld.core.scored import Ranked, Verdict
from recalld.edge.recalls import RecallRecord
from recalld.edge.store import Store
from recalld.errors import ConfigError
from recalld.service.question import Question
from recalld.service.recall import Recall
from recalld.service.recall_log import Answered, RecallLog, answered, record
from recalld.wire import messages as m
from recalld.wire import operations as o
from recalld.wire.errors import Code, ProtocolError

REPLAY_TTL_MS = 1_000  # a person waits: what is compared is what is chosen, not what is in time


class Explaining:
    """The operations `explain` and `replay_recall`. An agent sees its own recalls and no others."""

    def __init__(self, store: Store, recall: Recall, recall_log: RecallLog, config: Callable[[], Config]) -> None:
        self._store = store
        self._recall = recall
        self._recall_log = recall_log
        self._config = config

    async def explain(self, request: m.Request, params: o.ExplainParams) -> o.ExplainResult:
        found = await self._logged(request, params.id, params.last)
        if params.last > 1 and params.id is None:
            return o.ExplainResult([_bare(record, recall_id) for recall_id, record in found])
        return o.ExplainResult([await self._explained(record, recall_id) for recall_id, record in found])

    async def replay(self, request: m.Request, params: o.ReplayRecallParams) -> o.ReplayRecallResult:
        [(recall_id, logged)] = await self._logged(request, params.id, 1)
        then = await self._explained(logged, recall_id)
        now = await self._explained(await self._asked_again(logged, request, params), None)
        before, after = _injected(then), _injected(now)
        return o.ReplayRecallResult(
            then, now, [i for i in after if i not in before], [i for i in before if i not in after]
        )

    async def _logged(self, request: m.Request, recall_id: str | None, limit: int) -> list[tuple[int, RecallRecord]]:
        """The recall with this id, else the latest; at least one. Raises ProtocolError."""
        scope = self._scope(request)
        await self._recall_log.write()
        if recall_id is not None:
            number = int(recall_id[1:])
            record = await self._store.recall(scope.namespace, scope.agent, number)
            found = [(number, record)] if record else []
        else:
            found = await self._store.last_recalls(
                scope.namespace, scope.agent, scope.session, request.ctx.run_id, limit
            )
        if not found:
            what = f"recall {recall_id}" if recall_id else "no recall"
            why = "is not in the log" if recall_id else "is in the log"
            off = "" if self._config().recall_log.enabled else ", which is turned off (`recall_log.enabled`)"
            raise ProtocolError(Code.NOT_FOUND, f"{what} of agent `{scope.agent}` {why}{off}")
        return found

    def _scope(self, request: m.Request) -> Scope:
        scope = scope_of(request.ctx, self._config().shared)
        if scope is None:
            raise ProtocolError(Code.SCOPE, f"`{request.op}` needs an agent in ctx")
        return scope

    async def _asked_again(
        self, logged: RecallRecord, request: m.Request, params: o.ReplayRecallParams
    ) -> RecallRecord:
        """As a new session of the agent would ask it now: nothing was given to that one before."""
        try:
            settings = changed_recall(self._config(), params.settings, "settings")
        except ConfigError as e:
            raise ProtocolError(Code.PARAMS, f"settings: {e}") from None
        loop = asyncio.get_running_loop()
        judged: asyncio.Future[Answered] = loop.create_future()

        def watch(question: Question, ranked: Ranked | None, body: m.ContextBody) -> None:
            seen = answered(question, ranked, body)
            loop.call_soon_threadsafe(lambda: None if judged.done() else judged.set_result(seen))

        started = time.monotonic()
        self._recall.ask(
            Question(
                key=f"replay {uuid4().hex}",
                namespace=logged.namespace,
                query=logged.query,
                started=started,
                deadline=started + (request.ttl_ms or REPLAY_TTL_MS) / 1000,
                answer=lambda body: None,
                settings=settings,
                agent=logged.agent,
                context=logged.context,
                watch=watch,
            )
        )
        return record(await judged)

    async def _explained(self, logged: RecallRecord, recall_id: int | None) -> o.ExplainedRecall:
        told = _bare(logged, recall_id)
        read = {c.id for c in logged.candidates}
        found = logged.candidates + [c for c in logged.below.judged() if c.id not in read]
        rows = await self._store.memories_by_id(logged.namespace, [c.id for c in found])
        for c in found:
            parts = {name: round(value, 4) for name, value in c.parts.items()}
            candidate = o.Candidate(f"m{c.id}", round(c.score, 4), parts, c.verdict, c.via)
            if (row := rows.get(c.id)) is not None:
                candidate.kind, candidate.text, candidate.created_ms = row.kind, row.text, row.created_ms
            told.candidates.append(candidate)
        return told


def _bare(logged: RecallRecord, recall_id: int | None) -> o.ExplainedRecall:
    return o.ExplainedRecall(
        id=f"r{recall_id}" if recall_id is not None else None,
        at_ms=logged.at_ms,
        session=logged.session,
        run_id=logged.run_id or None,
        query=logged.query,
        context=logged.context,
        status=logged.status,  # type: ignore[arg-type]  # the log holds only these
        reason=logged.reason,
        source=logged.source,
        tokens=logged.tokens,
        elapsed_ms=logged.elapsed_ms,
        settings=logged.settings,
        stages=logged.stages,
    )


def _injected(recall: o.ExplainedRecall) -> list[str]:
    return [c.id for c in recall.candidates if c.verdict in (Verdict.INJECTED, Verdict.COLD_START)]
