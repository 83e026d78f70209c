"""The tools: operations with a direct answer."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from recalld_client import Client, RecalldError, RecalldUnavailable

from .fake_daemon import FakeDaemon, Map, frame, handshake, until

pytestmark = pytest.mark.anyio

CTX = {"agent_id": "main"}


def connect(fake: FakeDaemon, **kwargs: Any) -> Client:
    return Client("test", fake.runtime_dir, **kwargs)


async def test_each_operation_says_what_the_protocol_wants(fake: FakeDaemon) -> None:
    envelope = {"v": 1, "type": "llm_input", "id": "1", "src": "s-1", "seq": 1, "ts": 1}
    async with connect(fake) as client:
        results = [
            await client.search("boats", CTX),
            await client.search("boats", CTX, limit=3),
            await client.get("m1", CTX),
            await client.store("a text", CTX),
            await client.store("a text", CTX, category="fact"),
            await client.store("a text", CTX, importance=1, decay="short", pinned=False, entity="Ada"),
            await client.forget("m1", CTX),
            await client.status(),
            await client.drain(),
            await client.reindex(CTX, "words"),
            await client.toggle("off", CTX),
            await client.toggle("status", scope="global"),
            await client.publish([envelope]),
        ]
    assert [(request["op"], request.get("ctx"), request["params"]) for request in fake.requests] == [
        ("search", CTX, {"query": "boats", "limit": 10}),
        ("search", CTX, {"query": "boats", "limit": 3}),
        ("get", CTX, {"id": "m1"}),
        ("store", CTX, {"text": "a text", "category": "note"}),
        ("store", CTX, {"text": "a text", "category": "fact"}),
        (
            "store",
            CTX,
            {
                "text": "a text",
                "category": "note",
                "importance": 1,
                "decay": "short",
                "pinned": False,
                "entity": "Ada",
            },
        ),
        ("forget", CTX, {"id": "m1"}),
        ("status", None, {}),
        ("drain", None, {}),
        ("reindex", CTX, {"what": "words"}),
        ("toggle", CTX, {"state": "off", "scope": "session"}),
        ("toggle", None, {"state": "status", "scope": "global"}),
        ("publish", None, {"events": [envelope]}),
    ]
    assert [result["op"] for result in results] == [request["op"] for request in fake.requests]
    assert all(request["v"] == 1 and "token" not in request for request in fake.requests)
    assert len({request["id"] for request in fake.requests}) == 13
    assert fake.dials["rpc"] == 1


async def test_the_connection_is_made_when_it_is_needed(fake: FakeDaemon) -> None:
    async with connect(fake) as client:
        await client.ready(5)
        assert fake.dials["rpc"] == 0
        await asyncio.gather(*(client.status() for _ in range(5)))
        assert fake.dials["rpc"] == 1


async def test_a_refusal_is_an_error_with_its_fields(fake: FakeDaemon) -> None:
    fake.replies = lambda request: {
        "ok": False,
        "error": {"code": "E_NOT_FOUND", "message": "no m9", "remedy": "search for it"},
    }
    async with connect(fake) as client:
        with pytest.raises(RecalldError, match=r"E_NOT_FOUND: no m9 \(search for it\)") as caught:
            await client.get("m9", CTX)
    assert (caught.value.code, caught.value.message, caught.value.remedy) == (
        "E_NOT_FOUND",
        "no m9",
        "search for it",
    )
    assert not isinstance(caught.value, RecalldUnavailable)


@pytest.mark.parametrize("reply", [{"ok": False}, {"ok": False, "error": "x"}, {"ok": 1}, {}])
async def test_a_reply_that_makes_no_sense_is_an_error(fake: FakeDaemon, reply: Map) -> None:
    fake.replies = lambda request: reply
    async with connect(fake) as client:
        with pytest.raises(RecalldError, match="E_INTERNAL"):
            await client.status()


async def test_replies_in_any_order_are_told_apart(fake: FakeDaemon) -> None:
    bodies: list[bytes] = []
    fake.replies = lambda request: None
    async with connect(fake) as client:
        calling = [asyncio.create_task(client.get(f"m{number}", CTX)) for number in range(20)]
        await until(lambda: len(fake.requests) == 20)
        keys = fake.request_keys
        fake.inject("rpc", frame(b"\x80\0\0\0" + b'{"ok":true}'))  # of nobody
        fake.inject("rpc", frame(b"\x80"))
        for key, request in reversed(list(zip(keys, fake.requests, strict=True))):
            body = key + b'{"v":1,"ok":true,"result":{"id":"%s"}}' % request["params"]["id"].encode()
            bodies.append(body)
            fake.inject("rpc", frame(body) * 2)
        results = await asyncio.gather(*calling)
    assert [result["id"] for result in results] == [f"m{number}" for number in range(20)]
    assert len(set(keys)) == 20


async def test_no_daemon(runtime_dir: Path) -> None:
    async with Client("test", runtime_dir) as client:
        with pytest.raises(RecalldUnavailable, match="status"):
            await client.status()
    with pytest.raises(RecalldUnavailable, match="not entered"):
        await client.status()


async def test_no_reply_in_time(fake: FakeDaemon) -> None:
    fake.replies = lambda request: None
    async with connect(fake, timeout_s=0.05) as client:
        with pytest.raises(RecalldUnavailable, match=r"no reply within 0\.05 s"):
            await client.search("x", CTX)
        with pytest.raises(RecalldUnavailable, match=r"no reply within 0\.06 s"):
            await client.search("x", CTX, timeout_s=0.06)
        fake.replies = lambda request: {"ok": True, "result": {}}
        assert await client.search("x", CTX, timeout_s=5) == {}


async def test_a_new_daemon_is_found_by_the_next_call(fake: FakeDaemon) -> None:
    async with connect(fake) as client:
        await client.status()
        await fake.stop()
        with pytest.raises(RecalldUnavailable):
            await client.status()
        await fake.start()
        assert await client.status() == {"op": "status"}
        assert fake.dials["rpc"] == 2


async def test_a_request_whose_connection_ends_is_said_once_more(fake: FakeDaemon) -> None:
    def hang_up_once(request: Map) -> Map | None:
        if len(fake.requests) == 1:
            fake.hang_up("rpc")
            return None
        return {"ok": True, "result": {"n": len(fake.requests)}}

    fake.replies = hang_up_once
    async with connect(fake) as client:
        assert await client.store("text", CTX) == {"n": 2}
    assert fake.requests[0] == fake.requests[1]


async def test_a_connection_that_always_ends_is_unavailable(fake: FakeDaemon) -> None:
    def hang_up(request: Map) -> None:
        fake.hang_up("rpc")

    fake.replies = hang_up
    async with connect(fake) as client:
        with pytest.raises(RecalldUnavailable, match="ended"):
            await client.status()
    assert len(fake.requests) == 2


@pytest.mark.parametrize("raw", [b"\x01" + b"\xff" * 8, b"garbage!!", b"\x01" + bytes(7) + b"\x09part"])
async def test_what_is_no_frame_ends_the_connection_and_not_the_client(fake: FakeDaemon, raw: bytes) -> None:
    async with connect(fake) as client:
        await client.status()
        fake.inject("rpc", raw)
        for writer in fake.writers["rpc"]:
            writer.close()
        await until(lambda: not fake.writers["rpc"])
        assert await client.status() == {"op": "status"}


async def test_a_wrong_handshake(fake: FakeDaemon) -> None:
    fake.handshakes["rpc"] = handshake(0x21)
    async with connect(fake) as client:
        with pytest.raises(RecalldUnavailable, match="handshake"):
            await client.status()


async def test_what_cannot_be_sent_is_refused_here(fake: FakeDaemon) -> None:
    circle: list[Any] = []
    circle.append(circle)
    async with connect(fake) as client:
        with pytest.raises(RecalldError, match="E_TOO_LARGE"):
            await client.store("x" * 5_000_000, CTX)
        with pytest.raises(RecalldError, match="E_MALFORMED"):
            await client.publish([{"event": circle}])
    assert not fake.requests


async def test_over_tcp_each_request_carries_the_token(fake: FakeDaemon, tmp_path: Path) -> None:
    address = ("127.0.0.1", await fake.listen_tcp())
    (fake.runtime_dir / "rpc.token").write_text("from the folder\n")
    (tmp_path / "token").write_text("from a file")
    for kwargs in ({"token": "given"}, {"token_file": tmp_path / "token"}, {}):
        async with connect(fake, rpc_address=address, **kwargs) as client:
            await client.status()
            await client.drain()
    tokens = [request["token"] for request in fake.requests]
    assert tokens == ["given"] * 2 + ["from a file"] * 2 + ["from the folder"] * 2
    async with connect(fake, rpc_address=address, token_file=tmp_path / "none") as client:
        with pytest.raises(RecalldUnavailable, match="none"):
            await client.status()
