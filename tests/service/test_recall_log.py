"""The log of recalls: what it holds of an answer, that it stays small, and that what is forgotten is not in it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from msgspec.structs import replace

from recalld.config import Config, RecallLogConfig
from recalld.core.features import encode, features_of
from recalld.core.pack import RecallSettings
from recalld.core.scored import Below, Candidate, Ranked, Scored, Verdict
from recalld.edge.embed import DIMENSIONS
from recalld.edge.recalls import RecallRecord, recalls_unit, uses_unit
from recalld.edge.store import Store
from recalld.edge.units import Entry, MemoryRow, TurnRow, forget_turn_unit, memories_unit, removal_unit, turn_unit
from recalld.service.counters import Counters
from recalld.service.question import Question
from recalld.service.recall_log import WAITING_MAX, RecallLog
from recalld.service.writer import Writer
from recalld.wire.messages import ContextBody, Memory

pytestmark = pytest.mark.anyio

ENTRY = Entry("words", np.ones(DIMENSIONS, dtype=np.float32), encode(features_of("words", "", None)))


def scored(n: int, score: float, verdict: str = "") -> Scored:
    memory = Candidate(n, None, "note", None, f"text of {n}", 0, None, [])
    return Scored(memory, score, {"lexical": 0.5}, verdict=verdict)


class House:
    """A log on a real record of two notes."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.counters = Counters()
        self.writer = Writer(store, self.counters)
        self.config = Config()
        self.log = RecallLog(self.writer, self.counters, lambda: self.config)

    def note(self, query: str = "where are the tyres", **fields: Any) -> None:
        now = time.monotonic()
        fields = {"agent": "main", "session": "s", "run_id": "r", **fields}
        question = Question("k", "main", query, now, now + 1, lambda body: None, RecallSettings(), **fields)
        question.done("ranked")
        ranked = Ranked(
            [scored(1, 0.91), scored(2, 0.8, Verdict.ITEMS_MAX)],
            below=lambda: Below([9], [0.1], {"lexical": [0.25]}),
        )
        self.log.note(
            question, ranked, ContextBody("ok", 2.5, "what was sent", 7, None, [Memory("m1", "note", "text of 1", 0)])
        )

    async def logged(self, agent: str = "main", limit: int = 2_000) -> list[tuple[int, RecallRecord]]:
        await self.log.write()
        return await self.store.last_recalls("main", agent, None, None, limit)

    async def everything(self) -> bytes:
        return b"\n".join([row[0] for row in await self.store.rows("SELECT record FROM recalls")])


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    store = Store(tmp_path / "r.db")
    await store.open("test")
    rows = [MemoryRow(n, "main", None, "note", "note", f"text of {n}", 0) for n in (1, 2)]
    assert await store.commit([memories_unit(rows, [ENTRY, ENTRY], store.model_id)]) == [None]
    house = House(store)
    async with anyio.create_task_group() as tg:
        tg.start_soon(house.writer.run)
        yield house
        tg.cancel_scope.cancel()
    await store.close()


async def test_an_answer_is_logged_with_every_candidate_and_no_text_of_a_memory(house: House) -> None:
    house.note()
    [(recall_id, record)] = await house.logged()
    assert (recall_id, record.session, record.run_id, record.status, record.tokens) == (1, "s", "r", "ok", 7)
    assert record.query == "where are the tyres"
    assert record.settings["floor"] == RecallSettings().floor
    assert set(record.stages) == {"ranked"}
    assert [(c.id, c.score, c.verdict) for c in [*record.candidates, *record.below.judged()]] == [
        (1, 0.91, "injected"),
        (2, 0.8, "items_max"),
        (9, 0.1, "below_floor"),
    ]
    assert (record.candidates[0].parts, record.below.judged()[0].parts) == ({"lexical": 0.5}, {"lexical": 0.25})
    assert b"text of" not in await house.everything()
    assert b"what was sent" not in await house.everything()


async def test_what_was_given_but_not_found_is_told(house: House) -> None:
    now = time.monotonic()
    question = Question("k", "main", "hello", now, now + 1, lambda body: None, RecallSettings(), agent="main")
    body = ContextBody("ok", 2.5, "block", 7, "cold_start", [Memory("m2", "note", "text of 2", 0)])
    house.log.note(question, Ranked([]), body)
    [(_, record)] = await house.logged()
    assert [(c.id, c.verdict) for c in record.candidates] == [(2, "cold_start")]
    assert (await house.store.uses(2))[0] == 1


async def test_each_agent_has_its_own(house: House) -> None:
    house.note(agent="main")
    house.note(agent="other", session="t")  # both in one namespace, which the configuration may share
    assert [i for i, _ in await house.logged("main")] == [1]
    assert await house.store.recall("main", "main", 2) is None
    assert await house.store.recall("elsewhere", "other", 2) is None
    assert (await house.store.recall("main", "other", 2)) is not None
    assert [i for i, _ in await house.store.last_recalls("main", "main", "t", None, 5)] == []
    assert [i for i, _ in await house.store.last_recalls("main", "other", "t", "r", 5)] == [2]


async def test_only_the_newest_are_kept(house: House) -> None:
    house.config = replace(house.config, recall_log=RecallLogConfig(keep=3))
    for n in range(5):
        house.note(query=f"question {n}")
    assert [r.query for _, r in await house.logged()] == ["question 4", "question 3", "question 2"]


async def test_what_is_too_old_goes_where_nobody_asks_too(house: House) -> None:
    old = RecallRecord("main", "main", "s", "r", 1, "long ago", "ok", "search", 1.0, {}, {}, [], Below())
    await house.writer.write(recalls_unit([old]))
    assert await house.logged() == []


async def test_turned_off_it_is_empty_and_uses_are_still_counted(house: House) -> None:
    house.note()
    assert len(await house.logged()) == 1
    house.config = replace(house.config, recall_log=RecallLogConfig(enabled=False))
    assert await house.logged() == []
    house.note()
    assert await house.logged() == []
    assert (await house.store.uses(1))[0] == 2


async def test_what_there_is_no_room_for_is_counted(house: House) -> None:
    for _ in range(WAITING_MAX + 3):
        house.note()
    assert house.counters.unlogged == 3
    assert len(await house.logged()) == 1_000


async def test_what_cannot_be_written_is_counted_and_the_next_is_logged(house: House) -> None:
    await house.logged()
    await house.store.commit([[("ALTER TABLE recalls RENAME TO away", [()])]])
    house.note()
    await house.log.write()
    assert house.counters.unlogged == 1
    await house.store.commit([[("ALTER TABLE away RENAME TO recalls", [()])]])
    house.note()
    assert len(await house.logged()) == 1


async def test_uses_are_counted_for_what_was_injected_and_still_exists(house: House) -> None:
    house.note()
    house.note()
    await house.log.write()
    uses, last_used_ms = await house.store.uses(1)
    assert uses == 2
    assert last_used_ms is not None
    assert await house.store.uses(2) == (0, None)
    await house.writer.write(removal_unit("main", [1], forgotten=True))
    assert await house.store.uses(1) == (0, None)
    await house.writer.write(uses_unit({1: (1, 5)}))
    assert await house.store.uses(1) == (0, None)


@pytest.mark.parametrize("run", ["run-1", ""])
async def test_forgetting_a_turn_takes_its_prompt_out_of_the_log(house: House, run: str) -> None:
    now = int(time.time() * 1000)
    turn = TurnRow(
        1, "main", "main", "s", None, now - 1_000, now + 60_000, "quiet", "ok", "captured", None, 0, "", "",
        "my code is 4711", "noted", None, None,
    )  # fmt: skip
    row = MemoryRow(3, "main", 1, "turn", None, "my code is 4711", now)
    await house.writer.write(turn_unit(turn, [run or "@1"], [row], [ENTRY], house.store.model_id, []))
    house.note(query="my code is 4711", run_id=run)
    house.note(query="another session", session="t", run_id=run)
    house.note(query="another run", run_id="run-2")
    house.note(query="and then?", run_id="run-2", context="my code is 4711")
    house.note(query="and then?", run_id="run-2", session="t", context="something else")
    assert len(await house.logged()) == 5
    await house.writer.write([*removal_unit("main", [3], forgotten=True), *forget_turn_unit(1)])
    left = [(r.query, r.context) for _, r in await house.logged()]
    assert left == [("and then?", "something else"), ("another run", ""), ("another session", "")]
    assert b"4711" not in await house.everything()
