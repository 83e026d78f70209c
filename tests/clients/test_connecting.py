"""Connecting to a fake daemon that keeps the protocol, and to one that does not; notices; leaving."""

import asyncio
import gc
import json
import logging
import os
import threading
from pathlib import Path

import pytest

from recalld_client import Client, default_runtime_dir

from .fake_daemon import CTX, FakeDaemon, Map, connect, emit, frame, handshake, until

pytestmark = pytest.mark.anyio


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
