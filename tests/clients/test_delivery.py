"""Emitting and resending: what a fake daemon gets, whatever is lost on the way."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from .fake_daemon import CTX, FakeDaemon, Map, Spiteful, connect, emit, until

pytestmark = pytest.mark.anyio


async def test_an_event_is_an_envelope(fake: FakeDaemon) -> None:
    async with connect(fake) as client:
        seq = client.emit("agent_end", {"success": True, "text": "ü 😀"}, CTX | {"run_id": "r1"})
        assert await client.flush(5)
    [message] = fake.of_type("agent_end")
    ts = message.pop("ts")
    assert abs(ts / 1000 - os.stat(f"/proc/{os.getpid()}").st_ctime) < 86400 * 365
    assert message == {
        "v": 1,
        "type": "agent_end",
        "id": "e1",
        "seq": seq,
        "src": client.src,
        "ctx": CTX | {"run_id": "r1"},
        "event": {"success": True, "text": "ü 😀"},
    }


async def test_what_was_not_acknowledged_is_sent_again_in_order_after_a_welcome(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recalld_client.buffer.PAUSE_S", 60.0)
    async with connect(fake) as client:
        emit(client, 2)
        assert await client.flush(5)
        fake.drops = lambda message: "seq" in message
        emit(client, 3)
        assert not await client.flush(0.05)
        fake.hang_up()
        fake.drops = lambda message: False
        assert await client.flush(5)
    assert fake.seqs == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("short_pause")
async def test_without_an_acknowledgement_it_is_sent_again_after_a_pause(fake: FakeDaemon) -> None:
    fake.acking = False
    async with connect(fake) as client:
        emit(client, 3)
        await until(lambda: len(fake.seqs) >= 9)
        assert fake.seqs[:9] == [1, 2, 3] * 3
        assert fake.dials["events"] == 1
        fake.acking = True
        assert await client.flush(5)


async def test_a_gap_is_filled_at_once(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recalld_client.buffer.PAUSE_S", 60.0)
    lost: set[int] = set()

    def drop(message: Map) -> bool:
        seq = message.get("seq")
        if seq in (3, 4) and seq not in lost:
            lost.add(seq)
            return True
        return False

    fake.drops = drop
    async with connect(fake) as client:
        emit(client, 6)
        assert await client.flush(10)
    assert fake.disks[client.src].upto == 6


async def test_one_gap_makes_no_storm(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recalld_client.buffer.PAUSE_S", 60.0)
    monkeypatch.setattr("recalld_client.buffer.GAP_PAUSE_S", 60.0)
    fake.drops = lambda message: message.get("seq") == 1
    async with connect(fake, close_timeout_s=0.05) as client:
        emit(client, 50)  # each of the other 49 is acknowledged with the same gap
        await until(lambda: 50 in fake.seqs)
        assert await client.recall("all is read", CTX, ttl_ms=5000)
        assert len(fake.seqs) <= 2 * 49


async def test_overflow_gives_up_the_oldest_and_tells(runtime_dir: Path) -> None:
    fake = FakeDaemon(runtime_dir)
    async with connect(fake, events_max=3) as client:
        assert emit(client, 5) == [1, 2, 3, 4, 5]
        assert (client.pending, client.lost) == (3, 2)
        await fake.start()
        assert await client.flush(5)
    hello = fake.received[0]["event"]
    assert (hello["oldest"], hello["lost"]) == (3, 2)
    assert fake.seqs == [3, 4, 5]
    await fake.stop()


async def test_overflow_on_a_good_connection_is_told_by_another_hello(fake: FakeDaemon) -> None:
    fake.drops = lambda message: "seq" in message
    async with connect(fake, events_max=3) as client:
        assert await client.ready(5)
        emit(client, 5)
        await until(lambda: fake.of_type("hello")[-1]["event"]["lost"] == 2)
        assert fake.of_type("hello")[-1]["event"]["oldest"] == 3
        assert fake.dials["events"] == 1
        fake.drops = lambda message: False
        assert await client.flush(5)
        hellos = len(fake.of_type("hello"))
        emit(client, 1)
        assert await client.flush(5)
    assert len(fake.of_type("hello")) == hellos, "once told, it is not told again"


async def test_a_daemon_that_lost_its_disk_is_told_where_to_begin(fake: FakeDaemon) -> None:
    async with connect(fake) as client:
        emit(client, 4)
        assert await client.flush(5)
        await fake.stop()
        fake.disks.clear()
        await fake.start()
        emit(client, 2)
        assert await client.flush(5)
    assert sorted(fake.disks[client.src].events) == [5, 6]
    assert client.lost == 0


async def test_no_more_is_under_way_than_the_daemon_allows(fake: FakeDaemon) -> None:
    fake.limits = {"unacked_max": 5}
    fake.acking = False
    async with connect(fake) as client:
        emit(client, 20)
        await until(lambda: 5 in fake.seqs)
        assert await client.recall("all is read", CTX, ttl_ms=5000)
        assert max(fake.seqs) == 5
        assert client.limits["unacked_max"] == 5
        fake.acking = True
        assert await client.flush(10)


async def test_an_event_the_daemon_refuses_is_given_up_and_the_rest_goes_on(fake: FakeDaemon) -> None:
    notices: list[Map] = []
    fake.errors = lambda message: "E_ENVELOPE" if message.get("seq") == 2 else None
    async with connect(fake, on_notice=notices.append) as client:
        emit(client, 4)
        assert await client.flush(5)
        assert client.lost == 1
    assert sorted(fake.disks[client.src].events) == [1, 3, 4]
    assert [notice["re"] for notice in notices if notice["type"] == "error"] == ["e2"]


@pytest.mark.usefixtures("short_pause")
@pytest.mark.parametrize("code", ["E_STORAGE", "E_DRAINING", "E_BUSY"])
async def test_an_event_the_daemon_could_not_store_is_kept(fake: FakeDaemon, code: str) -> None:
    fake.errors = lambda message: code if "seq" in message else None
    async with connect(fake) as client:
        emit(client, 2)
        await until(lambda: len(fake.seqs) >= 4)
        fake.errors = lambda message: None
        assert await client.flush(5)
        assert client.lost == 0


def circle() -> Map:
    value: Map = {}
    value["self"] = value
    return value


def deep() -> Map:
    value: Map = {}
    for _ in range(100_000):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("event", "arrives"),
    [
        ({"a": object}, {"a": "<class 'object'>"}),
        ({"a": Path("/x"), "b": {1, 2} and b"raw"}, {"a": "/x", "b": "b'raw'"}),
        ({"a": float("nan"), "b": [float("inf")]}, {"a": None, "b": [None]}),
        ({(1, 2): 3, "b": 4}, {"b": 4}),
        ({"a": "half \ud83d gone"}, {"a": "half ? gone"}),
    ],
)
async def test_payloads_json_does_not_know_are_sent_all_the_same(fake: FakeDaemon, event: Map, arrives: Map) -> None:
    async with connect(fake) as client:
        assert client.emit("agent_end", event, CTX) == 1
        assert await client.flush(5)
    assert fake.of_type("agent_end")[0]["event"] == arrives


@pytest.mark.parametrize(
    ("type", "event"),
    [
        ("agent_end", {"a": Spiteful()}),
        ("agent_end", circle()),
        ("agent_end", deep()),
        ("agent_end", {"a": "x" * 5_000_000}),
        ("agent_end", 7),
        (None, {}),
        ("", {}),
        ("x" * 65, {}),
        ("hello", {}),
        ("before_prompt_build", {"prompt": "x"}),
    ],
    ids=lambda value: str(type(value)),
)
async def test_what_cannot_be_sent_is_counted_and_takes_no_seq(fake: FakeDaemon, type: Any, event: Any) -> None:
    async with connect(fake) as client:
        assert client.emit(type, event, CTX) == 0
        assert (client.lost, client.pending) == (1, 0)
        assert emit(client, 1) == [1]
        assert await client.flush(5)


async def test_a_history_is_cut_down_to_what_is_read(fake: FakeDaemon) -> None:
    history = [{"role": role, "content": str(number)} for number, role in enumerate(["user", "assistant"] * 3)]
    event = {"messages": history, "success": True}
    async with connect(fake) as client:
        client.emit("agent_end", event, CTX)
        assert await client.flush(5)
        await client.recall("x", CTX, ttl_ms=5000, messages=history)
    assert fake.of_type("agent_end")[0]["event"] == {"messages": history[-2:], "success": True}
    assert fake.of_type("before_prompt_build")[0]["event"]["messages"] == history[-2:]
    assert len(history) == 6
    assert event["messages"] is history


async def test_emitting_does_not_wait_for_a_daemon_that_stopped_reading(fake: FakeDaemon) -> None:
    async with connect(fake) as client:
        assert await client.ready(5)
        fake.reading.clear()
        for _ in range(400):
            client.emit("llm_output", {"assistantTexts": ["x" * 10_000]}, CTX)
            await asyncio.sleep(0)
        assert client.pending >= 399, "the fake may have been waiting for the first one"
        fake.reading.set()
        assert await client.flush(10)
        assert client.lost == 0


async def test_events_of_many_threads_are_all_there_in_order(fake: FakeDaemon) -> None:
    seqs: list[int] = []
    async with connect(fake) as client:
        await client.ready(5)
        threads = [threading.Thread(target=lambda: seqs.extend(emit(client, 300))) for _ in range(4)]
        for thread in threads:
            thread.start()
        await until(lambda: len(seqs) == 1200)
        assert await client.flush(10)
        for thread in threads:
            thread.join()
    assert sorted(seqs) == list(range(1, 1201))
    assert [seq for index, seq in enumerate(fake.seqs) if seq not in fake.seqs[:index]] == sorted(seqs)
