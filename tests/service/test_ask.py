"""From a prompt to its question: gates, toggles and what was said before it, over a real record and turn machine."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from recalld.config import Config
from recalld.core.gates import GateSettings
from recalld.core.pack import RecallSettings
from recalld.core.scope import scope_of
from recalld.core.turn import Turn
from recalld.edge.store import Store
from recalld.edge.units import EVERYWHERE
from recalld.errors import StorageError
from recalld.service import recent, toggles
from recalld.service.counters import Counters
from recalld.service.ingest import Ingest
from recalld.service.notices import Notices
from recalld.service.question import Question
from recalld.service.recall import Recall
from recalld.service.recent import Recent
from recalld.service.rpc import RpcService
from recalld.service.toggles import Toggles
from recalld.service.writer import Writer
from recalld.wire.messages import ContextBody, Ctx, DaemonInfo, Event, Reply, Request

pytestmark = pytest.mark.anyio

KEY = "agent:main:chat"
HISTORY = [{"role": "user", "content": "I sold the boat."}, {"role": "assistant", "content": "A pity."}]


class FakeRecall(Recall):
    """Remembers what was asked."""

    def __init__(self) -> None:
        self.questions: list[Question] = []

    def ask(self, question: Question) -> None:
        self.questions.append(question)

    def forget_given(self, agent: str, session: str) -> None:
        pass


class House:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.config = Config()
        self.counters = Counters()
        self.recall = FakeRecall()
        self.closed: list[Turn] = []
        self.writer = Writer(store, self.counters)
        self.toggles = Toggles(store, self.writer)
        self.ingest = Ingest(
            store=store,
            writer=self.writer,
            recall=self.recall,
            counters=self.counters,
            config=lambda: self.config,
            notices=Notices(lambda src, payload: None, DaemonInfo("recalld", "0", "i")),
            toggles=self.toggles,
            closed=self._close,
        )
        self._seq = 0

    async def _close(self, turn: Turn) -> None:
        self.closed.append(turn)

    def set(self, **settings: Any) -> None:
        """Settings of recall or of the gates, by their names."""
        recall = {k: v for k, v in settings.items() if k in RecallSettings.__struct_fields__}
        gates = {k: v for k, v in settings.items() if k in GateSettings.__struct_fields__ and k not in recall}
        self.config = replace(
            self.config, recall=replace(self.config.recall, **recall), gates=replace(self.config.gates, **gates)
        )

    async def hear(self, type_: str, event: dict[str, Any] | None = None, **ctx: str) -> None:
        """Take one kept event in, up to the turn machine."""
        self._seq += 1
        await self.ingest.publish_events(
            [Event(1, type_, f"e{self._seq}", "gw", self._seq, self._seq, None, place(**ctx), event or {})]
        )

    async def talk(self, run: str, user: str, answer: str, **ctx: str) -> None:
        """A turn, heard up to its answer and open still."""
        await self.hear("message_received", {"content": user}, run_id=run, **ctx)
        await self.hear("llm_output", {"assistantTexts": [answer]}, run_id=run, **ctx)

    def ask(self, prompt: str, messages: list[Any] | None = None, **ctx: str) -> tuple[str, str] | str | None:
        """(query, context) as recall got them, or the reason why it was not asked."""
        answers: list[ContextBody] = []
        payload = {"prompt": prompt, **({} if messages is None else {"messages": messages})}
        asked = len(self.recall.questions)
        self.ingest.ask(
            Event(1, "before_prompt_build", "q", "gw", 1, ctx=place(**ctx), event=payload),
            time.monotonic(),
            answers.append,
        )
        if len(self.recall.questions) > asked:
            question = self.recall.questions[-1]
            return question.query, question.context
        return answers[0].reason


def place(**ctx: str) -> Ctx:
    return Ctx(**{"session_key": KEY, **ctx})


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[House]:
    store = Store(folder / "a.db")
    await store.open("model")
    house = House(store)
    await house.toggles.restore()
    async with anyio.create_task_group() as tg:
        tg.start_soon(house.writer.run)
        tg.start_soon(house.ingest.run)
        yield house
        tg.cancel_scope.cancel()
    await store.close()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as house:
        yield house


# -- gates


async def test_a_gate_answers_with_its_reason(house: House) -> None:
    house.set(chats_deny=("7",), control_patterns=("beep",))
    assert house.ask("where is my bicycle?", chat_id="7") == "chat_denied"
    assert house.ask("beep") == "control_text"
    assert house.ask("ok") == "too_short"
    assert house.counters.recalls["skipped:chat_denied"] == 1
    assert house.ask("where is my bicycle?") == ("where is my bicycle?", "")


# -- what was said before


async def test_a_follow_up_gets_the_hosts_history(house: House) -> None:
    assert house.ask("and to whom?", HISTORY) == ("and to whom?", "I sold the boat.\nA pity.")
    assert house.recall.questions[-1].whole == "and to whom?\nI sold the boat.\nA pity."
    assert house.ask("why?", HISTORY) == ("why?", "I sold the boat.\nA pity.")
    assert house.ask("why?") == "too_short"
    assert house.ask("where is my bicycle?", HISTORY) == ("where is my bicycle?", "")
    house.set(query_mode="recent")
    assert house.ask("where is my bicycle?", HISTORY) == ("where is my bicycle?", "I sold the boat.\nA pity.")


async def test_without_a_history_what_was_heard_of_the_session_stands_in(house: House) -> None:
    await house.talk("r1", "I have two cats.", "Lovely.")
    await house.talk("r2", "I sold the boat.", "A pity.")
    expected = ("and to whom?", "I have two cats.\nI sold the boat.\nA pity.")
    assert house.ask("and to whom?") == expected  # the last turn is open still
    await house.ingest.close_turns("drain")
    assert house.ask("and to whom?") == expected
    await house.hear("message_received", {"content": "and to whom?"}, run_id="r3")
    assert house.ask("and to whom?", []) == expected
    assert house.ask("and to whom?", session_key="agent:main:other") == ("and to whom?", "")
    assert house.ask("and to whom?", session_key="agent:b:chat") == ("and to whom?", "")


@pytest.mark.parametrize("boundary", ["session_end", "before_reset"])
async def test_a_session_that_begins_anew_has_no_past(house: House, boundary: str) -> None:
    await house.talk("r1", "I have two cats.", "Lovely.")
    await house.talk("r2", "I sold the boat.", "A pity.")
    await house.hear(boundary)
    assert house.ask("and to whom?") == ("and to whom?", "")
    assert len(house.closed) == 2


async def test_a_compaction_is_no_new_beginning(house: House) -> None:
    await house.talk("r1", "I sold the boat.", "A pity.")
    await house.hear("before_compaction")
    assert house.ask("and to whom?") == ("and to whom?", "I sold the boat.\nA pity.")


async def test_a_heartbeat_is_not_what_was_said(house: House) -> None:
    await house.talk("r1", "I sold the boat.", "A pity.")
    await house.talk("r2", "Read your task list.", "All is well.", trigger="heartbeat")
    assert house.ask("and to whom?") == ("and to whom?", "I sold the boat.\nA pity.")
    await house.ingest.close_turns("drain")
    assert house.ask("and to whom?") == ("and to whom?", "I sold the boat.\nA pity.")


def test_what_is_kept_of_sessions_is_bounded() -> None:
    kept = Recent()
    for session in range(recent.SESSIONS_MAX + 1):
        for at in range(recent.TURNS_MAX + 1):
            kept.remember(_turn(f"s{session}", at, f"turn {at}", "y" * 5_000))
    assert list(kept.said(("main", "s0"), None)) == []
    said = list(kept.said(("main", "s1"), None))
    assert [s.text for s in said if s.role == "user"] == [f"turn {at}" for at in range(recent.TURNS_MAX, 0, -1)]
    assert {len(s.text) for s in said if s.role == "assistant"} == {recent.PART_CHARS_MAX}


def test_a_later_version_of_a_turn_replaces_it() -> None:
    kept = Recent()
    kept.remember(_turn("s", 1, "first", ""))
    kept.remember(_turn("s", 2, "second", "two"))
    kept.remember(_turn("s", 1, "first", "one"))
    assert [s.text for s in kept.said(("main", "s"), None)] == ["two", "second", "one", "first"]


def _turn(session: str, at: int, user: str, assistant: str) -> Turn:
    return Turn("main", "main", session, "gw", at, at, at, user=user, assistant=assistant)


# -- toggles


async def test_off_means_neither_recall_nor_capture_until_it_is_on_again(house: House) -> None:
    scope = scope_of(place(), {})
    await house.toggles.turn(("main", KEY), on=False)
    assert house.toggles.off(scope)
    assert house.ask("where is my bicycle?") == "toggled_off"
    assert house.ask("where is my bicycle?", session_key="agent:main:other") == ("where is my bicycle?", "")
    await house.talk("r1", "My safe is blue.", "I see.")
    await house.toggles.turn(("main", KEY), on=True)  # while the turn is open
    assert house.ask("where is my bicycle?") == ("where is my bicycle?", "")
    assert house.ask("and since when?") == ("and since when?", "")
    await house.talk("r2", "My bicycle is red.", "I see.")
    await house.ingest.close_turns("drain")
    assert [(turn.user, turn.off) for turn in house.closed] == [
        ("My safe is blue.", True),
        ("My bicycle is red.", False),
    ]


async def test_off_everywhere_is_off_in_each_session(house: House) -> None:
    await house.toggles.turn(EVERYWHERE, on=False)
    assert house.ask("where is my bicycle?") == "toggled_off"
    assert house.toggles.session(("main", KEY))
    await house.toggles.turn(("main", KEY), on=True)
    assert house.ask("where is my bicycle?") == "toggled_off"
    await house.toggles.turn(EVERYWHERE, on=True)
    assert house.ask("where is my bicycle?") == ("where is my bicycle?", "")


async def test_a_restart_keeps_what_is_off_and_what_was_heard_meanwhile(tmp_path: Path) -> None:
    async with opened(tmp_path) as first:
        await first.toggles.turn(("main", KEY), on=False)
        await first.toggles.turn(("main", "agent:main:other"), on=False)
        await first.toggles.turn(("main", "agent:main:other"), on=True)
        await first.talk("r1", "My safe is blue.", "I see.")
    async with opened(tmp_path) as second:
        assert second.ask("where is my bicycle?") == "toggled_off"
        assert second.ask("where is my bicycle?", session_key="agent:main:other") == ("where is my bicycle?", "")
        await second.toggles.turn(("main", KEY), on=True)
        await second.ingest.restore()
        await second.ingest.close_turns("drain")
        assert [turn.off for turn in second.closed] == [True]


async def test_a_toggle_that_is_not_on_disk_does_not_hold(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(units: Any) -> list[StorageError]:
        return [StorageError("the disk is full")]

    monkeypatch.setattr(house.store, "commit", full)
    with pytest.raises(StorageError):
        await house.toggles.turn(("main", KEY), on=False)
    assert not house.toggles.off(scope_of(place(), {}))


async def test_so_many_sessions_can_be_off(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toggles, "SESSIONS_MAX", 2)
    for session in ("a", "b"):
        assert not house.toggles.full
        await house.toggles.turn(("main", session), on=False)
    assert house.toggles.full
    assert await _toggled(house, "off", "c") == {"code": "E_PARAMS"}
    assert await _toggled(house, "off", "b") == {"global": "on", "session": "off"}
    assert await _toggled(house, "on", "a") == {"global": "on", "session": "on"}
    assert await _toggled(house, "off", "c") == {"global": "on", "session": "off"}


async def _toggled(house: House, state: str, session: str) -> dict[str, str]:
    """The result of the operation, or its error's code."""
    nothing: Any = None
    service = RpcService(
        store=house.store,
        memories=nothing,
        recall=house.recall,
        recall_log=nothing,
        ingest=house.ingest,
        toggles=house.toggles,
        counters=house.counters,
        config=lambda: house.config,
        status=nothing,
        drain=nothing,
        reindex=nothing,
        token=None,
    )
    request = Request(1, "r", "toggle", Ctx(agent_id="main", session_id=session), {"state": state})
    reply = msgspec.json.decode(await service.handle(msgspec.json.encode(request), False), type=Reply)
    return reply.result or {"code": reply.error.code.value if reply.error else ""}
