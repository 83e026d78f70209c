"""The client against a fake daemon that keeps the protocol, and one that does not."""

import asyncio
import gc
import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recalld_client import Client, Recall, default_runtime_dir

from .fake_daemon import FakeDaemon, Map, frame, handshake, until

pytestmark = pytest.mark.anyio

CTX = {"agent_id": "main", "session_key": "agent:main:chat"}


def connect(fake: FakeDaemon, **kwargs: Any) -> Client:
    return Client("test", fake.runtime_dir, **kwargs)


def emit(client: Client, count: int) -> list[int]:
    return [client.emit("llm_input", {"prompt": f"number {number}"}, CTX) for number in range(count)]


@pytest.fixture
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recalld_client.buffer.PAUSE_S", 0.1)


# Connecting


async def test_hello_is_repeated_until_welcomed_and_nothing_else_is_said_before(fake: FakeDaemon) -> None:
    fake.welcoming = False
    async with connect(fake) as client:
        emit(client, 2)
        await until(lambda: len(fake.received) >= 3)
        assert {message["type"] for message in fake.received} == {"hello"}
        assert len({message["id"] for message in fake.received}) == len(fake.received)
        assert not client.connected
        assert (await client.recall("x", CTX)).status == "unavailable"
        fake.welcoming = True
        assert await client.ready(5)
        assert await client.flush(5)
    hello = fake.received[0]
    assert hello["event"]["oldest"] == 1
    assert hello["event"]["lost"] == 0
    assert hello["src"] == client.src
    assert "seq" not in hello
    assert fake.seqs == [1, 2]


async def test_a_lost_hello_is_said_again(fake: FakeDaemon) -> None:
    lost: list[Map] = []

    def drop(message: Map) -> bool:
        lost.append(message)
        return len(lost) <= 2

    fake.drops = drop
    async with connect(fake) as client:
        assert await client.ready(5)
    assert [message["type"] for message in lost[:3]] == ["hello"] * 3


async def test_a_welcome_to_another_connection_proves_nothing(fake: FakeDaemon) -> None:
    async with connect(fake) as client:
        assert await client.ready(5)
        first = fake.received[0]["id"]
        fake.welcoming = False
        fake.hang_up()
        await until(lambda: fake.dials["events"] == 2 and len(fake.of_type("hello")) > 2)
        fake.publish(client.src, {"type": "welcome", "re": first, "upto": 0, "highest": 0})
        count = len(fake.of_type("hello"))
        await until(lambda: len(fake.of_type("hello")) > count + 1)
        assert not client.connected


async def test_entering_does_not_wait_and_the_link_comes_up_with_the_daemon(runtime_dir: Path) -> None:
    fake = FakeDaemon(runtime_dir)
    async with connect(fake) as client:
        assert emit(client, 3) == [1, 2, 3]
        assert (await client.recall("x", CTX)).status == "unavailable"
        assert not await client.ready(0.05)
        assert not await client.flush(0.05)
        assert client.pending == 3
        await fake.start()
        assert await client.flush(5)
    assert fake.seqs == [1, 2, 3]
    await fake.stop()


@pytest.mark.parametrize("endpoint", ["events", "context"])
async def test_when_one_direction_ends_both_are_dialled_again(fake: FakeDaemon, endpoint: str) -> None:
    async with connect(fake) as client:
        assert await client.ready(5)
        fake.hang_up(endpoint)
        await until(lambda: fake.dials["events"] == fake.dials["context"] == 2)
        await until(lambda: client.connected)
        assert await client.recall("again", CTX, ttl_ms=5000)


@pytest.mark.parametrize("endpoint", ["events", "context"])
@pytest.mark.parametrize(
    "raw",
    [
        b"\x01" + bytes(7) + b"\x50part of a fra",  # and then the end
        b"\x01" + (16 * 1024 * 1024 + 1).to_bytes(8, "big"),
        b"\x01" + b"\xff" * 8,
        b"\x07garbage and more of it",
    ],
)
async def test_what_is_no_frame_leads_to_a_new_connection(fake: FakeDaemon, endpoint: str, raw: bytes) -> None:
    async with connect(fake) as client:
        assert await client.ready(5)
        fake.inject(endpoint, raw)
        if b"part" in raw:
            for writer in fake.writers[endpoint]:
                writer.close()
        await until(lambda: fake.dials["events"] == fake.dials["context"] == 2)
        emit(client, 1)
        assert await client.flush(5)


async def test_messages_that_are_not_ours_or_make_no_sense_are_passed_over(fake: FakeDaemon) -> None:
    notices: list[Map] = []
    async with connect(fake, on_notice=notices.append) as client:
        assert await client.ready(5)
        topic = f"ctx/{client.src}".encode()
        for body in (
            b"",
            b"no topic",
            b"ctx/other-1\0not json",
            topic[:-1] + b'g\0{"type":"captured"}',  # as long as ours
            topic + b'9\0{"type":"captured"}',  # ours is only its beginning
            topic + b"\0not json",
            topic + b"\0[]",
            topic + b"\0{}",
            topic + b"\0" + b"[" * 100_000,
            topic + b'\0{"type":"later","v":1}',
            topic + b'\0{"type":"ack","upto":"x"}',
            topic + b'\0{"type":"ack","upto":-1,"highest":null}',
            topic + b'\0{"type":"context","re":["q1"]}',
            topic + b'\0{"type":"error","re":"e99","code":"E_ENVELOPE"}',
            topic + b'\0{"type":"welcome","re":"h\xc2\xb2"}',
            topic + b'\0{"type":"welcome","re":"h' + b"9" * 5000 + b'x"}',
        ):
            fake.inject("context", frame(body))
        assert await client.recall("still here", CTX, ttl_ms=5000)
        assert fake.dials["context"] == 1
        assert client.lost == 0
    assert [notice["type"] for notice in notices] == ["welcome", "error"]


@pytest.mark.parametrize("endpoint", ["events", "context"])
async def test_a_wrong_handshake_is_tried_again_at_growing_intervals(fake: FakeDaemon, endpoint: str) -> None:
    fake.handshakes[endpoint] = handshake(0x10)
    async with connect(fake) as client:
        await until(lambda: fake.dials[endpoint] >= 6)
        assert not fake.received
        assert not client.connected
        times = fake.dialled_at if endpoint == "context" else fake.dialled_at[1::2]
        assert times[5] - times[4] > 0.07
        fake.handshakes.clear()
        assert await client.ready(5)


async def test_the_interval_is_short_again_after_a_welcome(fake: FakeDaemon) -> None:
    async with connect(fake) as client:
        for number in range(8):  # without it the last of these would wait for more than a second
            assert await client.ready(5)
            fake.hang_up()
            await until(lambda number=number: fake.dials["context"] >= number + 2, 0.6)  # type: ignore[misc]


async def test_another_daemon_takes_over(fake: FakeDaemon) -> None:
    async with connect(fake) as client:
        emit(client, 2)
        assert await client.flush(5)
        await fake.stop()
        await until(lambda: not client.connected)
        emit(client, 2)
        assert (await client.recall("x", CTX)).status == "unavailable"
        await fake.start()
        assert await client.flush(5)
        assert (await client.recall("x", CTX, ttl_ms=5000)).status == "ok"
    assert fake.seqs == [1, 2, 3, 4]


# Delivery


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


class Spiteful:
    def __str__(self) -> str:
        raise RuntimeError("no")


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


# Questions


async def test_a_question_gets_its_answer(fake: FakeDaemon) -> None:
    async with connect(fake) as client:
        await client.ready(5)
        answer = await client.recall("boats", CTX, ttl_ms=4000)
    assert answer
    assert (answer.status, answer.text, answer.tokens) == ("ok", "about boats", 3)
    assert answer.memories == [{"id": "m1"}]
    [question] = fake.of_type("before_prompt_build")
    assert question["ttl_ms"] == 4000
    assert question["event"] == {"prompt": "boats"}
    assert question["ctx"] == CTX
    assert "seq" not in question


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"status": "empty", "text": "", "elapsed_ms": 4}, Recall("empty", elapsed_ms=4.0)),
        ({"status": "skipped", "reason": "cron"}, Recall("skipped", reason="cron")),
        ({"status": "partial", "text": "t", "reason": "vector_late"}, Recall("partial", "t", reason="vector_late")),
        ({"status": "error", "reason": "E_DEADLINE", "text": "x"}, Recall("error", reason="E_DEADLINE")),
        ({"status": 5, "text": 5, "memories": 5, "tokens": "5", "elapsed_ms": "5"}, Recall("error")),
        ({}, Recall("error")),
    ],
)
async def test_every_status(fake: FakeDaemon, sent: Map, expected: Recall) -> None:
    fake.contexts = lambda question: [sent]
    async with connect(fake) as client:
        await client.ready(5)
        answer = await client.recall("x", CTX, ttl_ms=5000)
    assert answer == expected
    assert bool(answer) == (expected.status == "partial")


async def test_many_questions_at_a_time_are_told_apart(fake: FakeDaemon) -> None:
    questions: list[Map] = []

    def collect(question: Map) -> Iterator[Map]:
        questions.append(question)
        return iter(())

    fake.contexts = collect
    async with connect(fake) as client:
        await client.ready(5)
        asking = [asyncio.create_task(client.recall(f"p{number}", CTX, ttl_ms=10_000)) for number in range(50)]
        await until(lambda: len(questions) == 50)
        for question in reversed(questions):
            text = question["event"]["prompt"]
            fake.publish(client.src, {"type": "context", "re": question["id"], "status": "ok", "text": text})
        answers = await asyncio.gather(*asking)
    assert [answer.text for answer in answers] == [f"p{number}" for number in range(50)]


async def test_a_second_answer_is_dropped(fake: FakeDaemon) -> None:
    fake.contexts = lambda question: [{"status": "ok", "text": "first"}, {"status": "ok", "text": "second"}]
    async with connect(fake) as client:
        await client.ready(5)
        answers = [(await client.recall("x", CTX, ttl_ms=5000)).text for _ in range(5)]
    assert answers == ["first"] * 5


async def test_no_answer_in_time_is_a_timeout_and_a_late_one_is_dropped(fake: FakeDaemon) -> None:
    fake.contexts = lambda question: []
    async with connect(fake) as client:
        await client.ready(5)
        answer = await client.recall("late", CTX, ttl_ms=30)
        assert (answer.status, answer.text, bool(answer)) == ("timeout", "", False)
        assert 45 <= answer.elapsed_ms < 5000, "ttl_ms and the margin"
        assert not client._link._asked, "what nobody waits for takes no memory"
        late = fake.of_type("before_prompt_build")[0]["id"]
        fake.publish(client.src, {"type": "context", "re": late, "status": "ok", "text": "too late"})
        fake.contexts = lambda question: [{"status": "ok", "text": "on time"}]
        assert (await client.recall("next", CTX, ttl_ms=5000)).text == "on time"


async def test_a_daemon_that_stopped_is_a_timeout(fake: FakeDaemon) -> None:
    async with connect(fake) as client:
        await client.ready(5)
        fake.reading.clear()
        async with asyncio.timeout(5):
            assert (await client.recall("x", CTX, ttl_ms=20)).status in ("timeout", "ok")  # it may have been reading
            assert (await client.recall("x", CTX, ttl_ms=20)).status == "timeout"
        fake.reading.set()


async def test_questions_are_not_queued_before_a_daemon_that_does_not_read(fake: FakeDaemon) -> None:
    async with connect(fake) as client:
        await client.ready(5)
        fake.reading.clear()
        answers = [await client.recall("x" * 500_000, CTX, ttl_ms=1) for _ in range(12)]
        assert answers[-1] == Recall("unavailable", reason="the daemon does not read")
        fake.reading.set()


async def test_a_question_adds_no_events_to_a_long_queue(fake: FakeDaemon) -> None:
    async with connect(fake, close_timeout_s=0.05) as client:
        await client.ready(5)
        fake.reading.clear()
        for _ in range(400):
            client.emit("llm_output", {"assistantTexts": ["x" * 10_000]}, CTX)
        statuses = {(await client.recall("x", CTX, ttl_ms=1)).status for _ in range(40)}
        assert "unavailable" not in statuses
        fake.reading.set()


async def test_a_connection_that_ends_answers_the_open_questions(fake: FakeDaemon) -> None:
    fake.contexts = lambda question: []
    async with connect(fake) as client:
        await client.ready(5)
        asking = asyncio.create_task(client.recall("x", CTX, ttl_ms=60_000))
        await until(lambda: fake.of_type("before_prompt_build"))
        fake.hang_up()
        async with asyncio.timeout(5):
            assert (await asking).status == "unavailable"
        assert await client.ready(5)
        fake.contexts = lambda question: [{"status": "empty"}]
        assert (await client.recall("y", CTX, ttl_ms=5000)).status == "empty"
    prompts = [question["event"]["prompt"] for question in fake.of_type("before_prompt_build")]
    assert prompts == ["x", "y"], "a question is never sent again"


async def test_an_error_in_place_of_an_answer(fake: FakeDaemon) -> None:
    fake.errors = lambda message: "E_ENVELOPE" if message["type"] == "before_prompt_build" else None
    async with connect(fake) as client:
        await client.ready(5)
        assert await client.recall("x", CTX, ttl_ms=5000) == Recall("error", reason="E_ENVELOPE")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("x", 7, 100), "E_MALFORMED"),
        (("x", CTX, "soon"), "E_MALFORMED"),
        (("x", CTX, float("nan")), "E_MALFORMED"),
        ((Spiteful(), CTX, 100), "E_MALFORMED"),
        (("x" * 5_000_000, CTX, 100), "E_TOO_LARGE"),
    ],
    ids=["ctx", "text", "nan", "object", "large"],
)
async def test_recall_never_raises(fake: FakeDaemon, arguments: Any, reason: str) -> None:
    async with connect(fake) as client:
        await client.ready(5)
        assert await client.recall(*arguments) == Recall("error", reason=reason)


async def test_ttl_is_kept_within_the_protocols_bounds(fake: FakeDaemon) -> None:
    async with connect(fake, margin_ms=5000) as client:
        await client.ready(5)
        for ttl_ms in (-5, 10**9):
            await client.recall("x", CTX, ttl_ms=ttl_ms)
    assert [question["ttl_ms"] for question in fake.of_type("before_prompt_build")] == [1, 60_000]


async def test_recall_can_be_cancelled(fake: FakeDaemon) -> None:
    fake.contexts = lambda question: []
    async with connect(fake) as client:
        await client.ready(5)
        asking = asyncio.create_task(client.recall("x", CTX, ttl_ms=60_000))
        await until(lambda: fake.of_type("before_prompt_build"))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_question_follows_what_was_emitted_before_it(fake: FakeDaemon) -> None:
    async with connect(fake) as client:
        await client.ready(5)
        client.emit("message_received", {"content": "hi"}, CTX)
        await client.recall("hi", CTX, ttl_ms=5000)
    assert [message["type"] for message in fake.received[1:]] == ["message_received", "before_prompt_build"]


async def test_a_question_does_not_wait_for_a_long_backlog(fake: FakeDaemon) -> None:
    async with connect(fake, events_max=8192, close_timeout_s=30) as client:
        await client.ready(5)
        for _ in range(2000):
            client.emit("llm_output", {"assistantTexts": ["x" * 5000]}, CTX)
        await client.recall("quick", CTX, ttl_ms=10_000)
        position = [message["type"] for message in fake.received].index("before_prompt_build")
        assert position < 500
        assert await client.flush(30)


# Notices and life


async def test_notices_are_handed_on_and_may_fail(fake: FakeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []

    def fail(notice: Map) -> None:
        heard.append(notice["type"])
        raise RuntimeError("a host's defect")

    async with connect(fake, on_notice=fail) as client:
        await client.ready(5)
        fake.publish(client.src, {"type": "captured", "turn": {"id": "t1"}})
        fake.publish(client.src, {"type": "error", "code": "E_UNKNOWN_TYPE", "re": "e1"})
        await until(lambda: len(heard) == 3)
        assert client.connected
    assert heard == ["welcome", "captured", "error"]
    assert "a host's defect" in caplog.text


async def test_leaving_sends_what_is_left(fake: FakeDaemon) -> None:
    async with connect(fake) as client:
        emit(client, 500)
    assert client.pending == 0
    assert len(fake.disks[client.src].events) == 500


@pytest.mark.parametrize("state", ["no daemon", "not welcomed", "not acknowledged", "not reading", "waiting"])
async def test_leaving_is_bounded_and_leaves_nothing(runtime_dir: Path, state: str) -> None:
    fake = FakeDaemon(runtime_dir)
    if state != "no daemon":
        await fake.start()
    fake.welcoming = state != "not welcomed"
    fake.acking = False
    fake.contexts = lambda question: []
    fake.replies = lambda request: None
    await asyncio.sleep(0)
    gc.collect()
    tasks, threads = asyncio.all_tasks(), threading.active_count()
    files = len(os.listdir("/proc/self/fd"))
    async with asyncio.timeout(10):
        async with connect(fake, close_timeout_s=0.05) as client:
            if state not in ("no daemon", "not welcomed"):
                assert await client.ready(5)
            if state == "not reading":
                fake.reading.clear()
            if state == "waiting":
                asking = asyncio.create_task(client.recall("x", CTX, ttl_ms=60_000))
                calling = asyncio.create_task(client.status(timeout_s=60))
                await until(lambda: fake.requests and fake.of_type("before_prompt_build"))
            for _ in range(100):
                client.emit("llm_output", {"assistantTexts": ["x" * 10_000]}, CTX)
        assert not client.connected
        assert client.pending == 100
        if state == "waiting":
            assert (await asking).status == "unavailable"
            with pytest.raises(Exception, match="the client was closed"):
                await calling
        assert (await client.recall("x", CTX)).status == "unavailable"
    await fake.stop()
    await until(lambda: asyncio.all_tasks() <= tasks)
    await until(lambda: threading.active_count() == threads)
    # the fake's three listening sockets were opened in between and are closed with it
    await until(lambda: len(os.listdir("/proc/self/fd")) <= files)


async def test_leaving_on_an_error_or_cancelled_leaves_nothing_either(fake: FakeDaemon) -> None:
    tasks = asyncio.all_tasks()

    async def failing() -> None:
        async with connect(fake) as client:
            await client.ready(5)
            raise RuntimeError("of the host")

    with pytest.raises(RuntimeError, match="host"):
        await failing()
    fake.acking = False

    async def forever() -> None:
        async with connect(fake, close_timeout_s=60) as client:
            emit(client, 1)

    leaving = asyncio.create_task(forever())
    await until(lambda: fake.seqs)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    fake.hang_up()
    await until(lambda: {task for task in asyncio.all_tasks() if "recalld" in task.get_name()} <= tasks)


async def test_a_client_is_entered_once(fake: FakeDaemon) -> None:
    async with connect(fake) as client:
        with pytest.raises(RuntimeError, match="once"):
            await client.__aenter__()


async def test_emitting_outside_of_the_context_keeps_the_event(fake: FakeDaemon) -> None:
    client = connect(fake)
    assert emit(client, 1) == [1]
    async with client:
        assert await client.flush(5)
    assert emit(client, 1) == [2]
    assert client.pending == 1


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "ä", "a" * 120, "a\n"])
def test_a_name_that_makes_no_src_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        Client(name)


def test_src_is_new_for_each_client() -> None:
    first, second = Client("a" * 119).src, Client("a" * 119).src
    assert first != second
    assert len(first) == 128


def test_where_the_daemon_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECALLD_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert default_runtime_dir() == Path(f"/run/user/{os.getuid()}/recalld")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/x")
    assert default_runtime_dir() == Path("/run/x/recalld")
    monkeypatch.setenv("RECALLD_RUNTIME_DIR", "/own")
    assert default_runtime_dir() == Path("/own")
    assert Client().runtime_dir == Path("/own")
    assert Client(runtime_dir="/given").runtime_dir == Path("/given")


async def test_a_defect_in_the_link_is_logged_and_the_link_comes_back(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(fake) as client:
        assert await client.ready(5)
        with monkeypatch.context() as broken:
            broken.setattr("recalld_client.link.decode", lambda payload: {"type": "ack", "upto": json})
            broken.setattr("recalld_client.link.isinstance", lambda value, kind: True, raising=False)
            fake.publish(client.src, {"type": "ack"})
            await until(lambda: "the link failed" in caplog.text)
        assert await client.ready(5)
    assert caplog.records[0].levelno == logging.ERROR
