"""Capture: what a turn becomes, and that a defect in one costs no other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import anyio
import pytest

from recalld.config import Config
from recalld.core.turn import Turn
from recalld.edge.store import Store
from recalld.edge.units import TurnRow, turn_unit
from recalld.errors import StorageError
from recalld.service import capture as module
from recalld.service.capture import Capture, memories_of
from recalld.service.counters import Counters
from recalld.service.memories import Memories, NewMemory, TurnWrite
from recalld.service.notes import Notes
from recalld.wire.messages import Captured, Ctx


class FakeMemories(Memories):
    """Remembers what was to be written; fails as often as it is told to."""

    def __init__(self) -> None:
        self.writes: list[TurnWrite] = []
        self.failures = 0

    async def write_turns(self, turns: Sequence[TurnWrite]) -> None:
        if self.failures:
            self.failures -= 1
            raise StorageError("the disk is full")
        self.writes.extend(turns)


class FakeNotes(Notes):
    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


class House:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.memories = FakeMemories()
        self.counters = Counters()
        self.published: list[Captured] = []
        self.capture = Capture(
            store=store,
            memories=self.memories,
            counters=self.counters,
            config=Config,
            notes=FakeNotes(),
            publish=self.published.append,
        )

    async def take(self, *turns: Turn) -> list[tuple[str, str | None, list[str]]]:
        """(outcome, reason, memory texts) of each turn."""
        async with anyio.create_task_group() as tg:
            tg.start_soon(self.capture.run)
            for turn in turns:
                await self.capture.put(turn)
            with anyio.fail_after(20):
                await self.capture.idle()
            tg.cancel_scope.cancel()
        return [(w.row.outcome, w.row.reason, [m.text for m in w.memories]) for w in self.memories.writes]


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    store = Store(tmp_path / "c.db")
    await store.open("model")
    yield House(store)
    await store.close()


def turn(run: str, user: str, assistant: str = "Noted.", **ctx: str) -> Turn:
    place = {"session_key": "agent:main:chat", **ctx}
    return Turn(
        agent="main",
        namespace="main",
        session=place["session_key"],
        src="gw",
        opened_ms=1,
        first_ts=1,
        last_ts=2,
        revision=0,
        runs=[run],
        user=user,
        assistant=assistant,
        ctx=Ctx(**place),
        seqs={"gw": (1, 2)},
        journal=[("gw", 1), ("gw", 2)],
    )


@pytest.mark.anyio
async def test_a_turn_becomes_one_memory_with_both_names_and_its_facts(house: House) -> None:
    (found,) = await house.take(turn("r", "I live in Bergen. Nice day!", sender_name="Ada", agent_name="Bo"))
    assert found == ("captured", None, ["Ada: I live in Bergen. Nice day!\nBo: Noted.", "Ada: I live in Bergen."])
    assert [c.outcome for c in house.published] == ["captured"]
    assert house.counters.finished == {"main": 1}


@pytest.mark.anyio
async def test_a_gate_skips_with_its_reason_and_keeps_no_words(house: House) -> None:
    found = await house.take(
        turn("r1", "run it", session_key="agent:main:subagent:1"),
        turn("r2", "hello", session_key="agent:main:telegram:group:9"),
        turn("r3", "/new", ""),
    )
    assert found == [("skipped", reason, []) for reason in ("subagent", "chat_type", "control_text")]
    assert all(w.row.user == w.row.assistant == "" for w in house.memories.writes)


@pytest.mark.anyio
async def test_what_was_heard_while_memory_was_off_is_not_kept(house: House) -> None:
    heard = turn("r1", "I live in Bergen.")
    heard.off = True
    assert await house.take(heard) == [("skipped", "toggled_off", [])]
    assert [c.reason for c in house.published] == ["toggled_off"]


@pytest.mark.anyio
@pytest.mark.parametrize(("outcome", "reason"), [("captured", None), ("skipped", "toggled_off")])
async def test_a_late_signal_does_not_change_whether_a_turn_is_on_the_record(
    house: House, outcome: str, reason: str | None
) -> None:
    late = turn("r1", "I live in Bergen. My safe is blue.")
    late.off = outcome == "captured"  # turned off since; or on again
    user = "I live in Bergen." if outcome == "captured" else ""
    row = TurnRow(
        1,
        "main",
        "main",
        "agent:main:chat",
        None,
        1,
        2,
        "quiet",
        "ok",
        outcome,
        reason,
        0,
        "U",
        "A",
        user,
        "",
        None,
        None,
    )
    assert await house.store.commit([turn_unit(row, ["r1"], [], [], house.store.model_id, [])]) == [None]
    ((found, why, texts),) = await house.take(late)
    assert (found, why) == (outcome, reason)
    assert "Bergen" in "".join(texts) or outcome == "skipped"
    assert "safe" not in "".join(texts)


@pytest.mark.anyio
async def test_a_full_disk_is_waited_for(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", (0.001,))
    house.memories.failures = 5
    assert [outcome for outcome, *_ in await house.take(turn("r", "I live in Bergen."))] == ["captured"]


@pytest.mark.anyio
async def test_a_defect_in_one_turn_costs_no_other_and_not_the_daemon(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(row: TurnRow) -> list[NewMemory]:
        if "poison" in row.user:
            raise ZeroDivisionError
        return memories_of(row)

    monkeypatch.setattr(module, "memories_of", broken)
    found = await house.take(turn("r1", "first words"), turn("r2", "poison"), turn("r3", "last words"))
    assert [(outcome, reason) for outcome, reason, _ in found] == [
        ("captured", None),
        ("skipped", "fault"),
        ("captured", None),
    ]
    assert all(
        w.release == [("DELETE FROM journal WHERE src = ? AND seq = ?", [("gw", 1), ("gw", 2)])]
        for w in house.memories.writes
    )
    assert "capture" in house.counters.faults
