"""The sockets of a running daemon: who may use them, in which encodings, and what bad input gets."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pynng
import pytest

from daemon_process import DaemonProcess

CTX = {"agent_id": "main", "session_key": "agent:main:chat"}


class Bus:
    """A gateway made of bare sockets: it sends bytes and reads what comes back."""

    def __init__(self, daemon: DaemonProcess, src: str = "test-1") -> None:
        self.src = src
        self.seq = 0
        self.sub = pynng.Sub0(topics=f"ctx/{src}\0".encode(), recv_timeout=5_000)
        self.sub.dial(f"ipc://{daemon.runtime_dir}/context.ipc", block=True)
        self.pub = pynng.Pub0()
        self.pub.dial(f"ipc://{daemon.runtime_dir}/events.ipc", block=True)
        self.hello()

    def envelope(self, type_: str, *, kept: bool = True, **fields: Any) -> dict[str, Any]:
        if kept:
            self.seq += 1
            fields.setdefault("seq", self.seq)
        return {"v": 1, "type": type_, "id": f"{type_}-{time.monotonic_ns()}", "src": self.src, "ts": 1, **fields}

    def hello(self, **event: Any) -> dict[str, Any]:
        self.sub.recv_timeout = 200
        try:
            for _ in range(100):  # the first message on a new connection may be lost
                self.send(self.envelope("hello", kept=False, event=event))
                try:
                    return self.receive("welcome")
                except pynng.Timeout:
                    continue
        finally:
            self.sub.recv_timeout = 5_000
        raise AssertionError("no welcome")

    def send(self, message: dict[str, Any] | bytes, encode: Any = msgspec.json.encode) -> None:
        self.pub.send(message if isinstance(message, bytes) else encode(message))

    def receive(self, type_: str, decode: Any = json.loads) -> dict[str, Any]:
        """The next answer of a type; others are passed over."""
        while True:
            payload = self.sub.recv().partition(b"\0")[2]
            answer: dict[str, Any] = decode(payload)
            if answer["type"] == type_:
                return answer

    def close(self) -> None:
        self.pub.close()
        self.sub.close()


@pytest.fixture
def bus(daemon: DaemonProcess) -> Iterator[Bus]:
    bus = Bus(daemon)
    yield bus
    bus.close()


def call(
    address: str, request: dict[str, Any] | bytes, encode: Any = msgspec.json.encode, decode: Any = json.loads
) -> dict[str, Any]:
    with pynng.Req0(dial=address, recv_timeout=10_000, send_timeout=10_000) as req:
        req.send(request if isinstance(request, bytes) else encode(request))
        reply: dict[str, Any] = decode(req.recv())
    return reply


def either(data: bytes) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(data) if data[:1] == b"{" else msgspec.msgpack.decode(data)
    return decoded


def rpc(daemon: DaemonProcess) -> str:
    return f"ipc://{daemon.runtime_dir}/rpc.ipc"


def test_folder_and_sockets_are_the_users_own(daemon: DaemonProcess) -> None:
    assert stat.S_IMODE(daemon.runtime_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(daemon.data_dir.stat().st_mode) == 0o700
    for name in ("events", "context", "rpc"):
        mode = (daemon.runtime_dir / f"{name}.ipc").stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
    for path in daemon.data_dir.rglob("*"):
        if path.is_file() and "index" not in path.parts:
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try it as another user")
def test_a_foreign_uid_is_refused_even_where_the_folder_is_open(daemon: DaemonProcess) -> None:
    daemon.folder.chmod(0o711)
    daemon.runtime_dir.chmod(0o711)
    for path in daemon.runtime_dir.glob("*.ipc"):
        path.chmod(0o666)
    script = (
        "import os, socket, struct, sys\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX); s.settimeout(5); s.connect(sys.argv[1])\n"
        "s.sendall(bytes.fromhex('0053500000300000')); body = struct.pack('>I', 0x80000001) + sys.argv[2].encode()\n"
        "try:\n"
        "    s.sendall(b'\\x01' + struct.pack('>Q', len(body)) + body)\n"
        "    data = b''\n"
        "    while chunk := s.recv(4096): data += chunk\n"
        "except OSError: pass\n"
        "sys.exit(0 if b'\"re\"' not in data else 9)\n"
    )
    request = json.dumps({"v": 1, "id": "x", "op": "status"})
    python = Path(sys.executable).resolve()
    done = subprocess.run(
        [python, "-c", script, daemon.runtime_dir / "rpc.ipc", request], capture_output=True, timeout=30
    )
    if b"Permission denied" in done.stderr and b"python" in done.stderr:
        pytest.skip("the interpreter is where another user cannot start it")
    assert done.returncode == 0, done.stderr.decode()
    status = call(rpc(daemon), {"v": 1, "id": "x", "op": "status"})
    assert status["result"]["ignored"]["foreign_uid"] >= 1


def test_a_regular_file_where_a_socket_should_be_is_not_deleted(short_folder: Path) -> None:
    daemon = DaemonProcess(short_folder)
    daemon.runtime_dir.mkdir(mode=0o700)
    precious = daemon.runtime_dir / "context.ipc"
    precious.write_text("precious")
    with pytest.raises(AssertionError, match="not a socket"):
        daemon.start()
    assert precious.read_text() == "precious"


def test_a_turn_goes_in_and_comes_back_in_messagepack(daemon: DaemonProcess, bus: Bus) -> None:
    pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode
    ctx = {**CTX, "run_id": "r1", "sender_name": "Ada"}
    bus.send(bus.envelope("llm_input", ctx=ctx, event={"prompt": "My boat is moored in Hoorn."}), pack)
    bus.send(bus.envelope("llm_output", ctx=ctx, event={"assistantTexts": ["A fine harbour."]}), pack)
    assert bus.receive("ack", unpack)["upto"] >= 1
    captured = bus.receive("captured", unpack)
    assert (captured["outcome"], captured["turn"]["closed_by"], captured["turn"]["run_ids"]) == (
        "captured",
        "quiet",
        ["r1"],
    )
    question = bus.envelope(
        "before_prompt_build", kept=False, ttl_ms=5_000, ctx={**CTX, "session_key": "agent:main:new"}
    )
    question["event"] = {"prompt": "Where is my boat moored?"}
    bus.send(question, pack)
    answer = bus.receive("context", unpack)
    assert answer["re"] == question["id"]
    assert answer["status"] == "ok"
    assert "Hoorn" in answer["text"]
    assert answer["memories"][0]["run_ids"] == ["r1"]
    reply = call(
        rpc(daemon), {"v": 1, "id": "q", "op": "search", "ctx": CTX, "params": {"query": "boat"}}, pack, unpack
    )
    assert reply["ok"]
    assert "Hoorn" in reply["result"]["memories"][0]["text"]


def test_agents_do_not_see_each_others_memories(daemon: DaemonProcess, bus: Bus) -> None:
    stored = call(
        rpc(daemon),
        {"v": 1, "id": "1", "op": "store", "ctx": {"agent_id": "a"}, "params": {"text": "The safe code is seven."}},
    )
    memory_id = stored["result"]["id"]
    for op, params in (("search", {"query": "safe code"}), ("get", {"id": memory_id}), ("forget", {"id": memory_id})):
        own = {
            "v": 1,
            "id": "2",
            "op": op,
            "ctx": {"agent_id": "b", "session_key": "agent:b:x"},
            "params": {**params, "agent_id": "a", "namespace": "a"},
        }
        reply = call(rpc(daemon), own)
        if op == "search":
            assert reply["result"]["memories"] == []
        else:
            assert reply["error"]["code"] == "E_NOT_FOUND"
    bus.send(
        bus.envelope(
            "before_prompt_build",
            kept=False,
            ttl_ms=5_000,
            ctx={"agent_id": "a", "session_key": "agent:b:x"},
            event={"prompt": "What is the safe code?"},
        )
    )
    assert bus.receive("context")["status"] == "empty"
    assert call(rpc(daemon), {"v": 1, "id": "3", "op": "get", "ctx": {"agent_id": "a"}, "params": {"id": memory_id}})[
        "ok"
    ]


def test_unknown_scope_is_acknowledged_counted_and_nothing_else(daemon: DaemonProcess, bus: Bus) -> None:
    bus.send(bus.envelope("llm_input", ctx={"run_id": "r"}, event={"prompt": "whose am I?"}))
    assert bus.receive("ack")["upto"] == bus.seq
    bus.send(bus.envelope("before_prompt_build", kept=False, ctx={"agent_id": "a"}, event={"prompt": "whose am I?"}))
    answer = bus.receive("context")
    assert (answer["status"], answer["reason"]) == ("skipped", "unknown_scope")
    status = call(rpc(daemon), {"v": 1, "id": "x", "op": "status"})["result"]
    assert status["ignored"]["unknown_scope"] == 2
    assert status["agents"] == {}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"v": 2}, "E_VERSION"),
        ({"seq": 0}, "E_ENVELOPE"),
        ({"ts": -1}, "E_ENVELOPE"),
        ({"ctx": 3}, "E_ENVELOPE"),
        ({"type": "moon_phase"}, "E_UNKNOWN_TYPE"),
    ],
)
def test_a_bad_event_is_answered_settled_and_disturbs_nobody(bus: Bus, change: dict[str, Any], code: str) -> None:
    bad = bus.envelope("llm_input", ctx=CTX, event={"prompt": "hi"}) | change
    bus.send(bad)
    error = bus.receive("error")
    assert (error["code"], error["re"]) == (code, bad["id"])
    assert error["remedy"]
    good = bus.envelope("session_start", ctx=CTX)
    bus.send(good)
    ack = bus.receive("ack")
    while ack["highest"] < good["seq"]:
        ack = bus.receive("ack")
    assert ack["upto"] == (good["seq"] if change.get("seq") != 0 else 0)


def test_noise_on_every_socket_is_counted_and_survived(daemon: DaemonProcess, bus: Bus) -> None:
    for noise in (
        b"",
        b"\xff\xfe",
        b"{",
        b"[]",
        b"{}" * 10,
        b"\xc1" * 1000,
        b"\x81",
        b"{" + b" " * (5 * 1024 * 1024),
    ):
        bus.send(noise)
        if noise:
            reply = call(rpc(daemon), noise, decode=either)
            assert reply["error"]["code"] in {"E_MALFORMED", "E_VERSION", "E_TOO_LARGE"}
    bus.send(bus.envelope("session_start", ctx=CTX))
    assert bus.receive("ack")["upto"] == bus.seq
    status = call(rpc(daemon), {"v": 1, "id": "x", "op": "status"})["result"]
    assert status["errors"]["E_MALFORMED"] >= 8
    assert status["errors"]["E_TOO_LARGE"] >= 2


def test_rpc_errors_name_the_thing(daemon: DaemonProcess) -> None:
    def code(**request: Any) -> tuple[str, str]:
        error = call(rpc(daemon), {"v": 1, "id": "x", **request})["error"]
        return error["code"], error["message"]

    assert code(op="sing")[0] == "E_UNKNOWN_OP"
    assert code(op="search", ctx=CTX, params={"query": ""}) == ("E_PARAMS", "query: Expected `str` of length >= 1")
    assert code(op="search", params={"query": "x"})[0] == "E_SCOPE"
    assert code(op="recall", ctx={"agent_id": "a"}, params={"prompt": "hello there"})[0] == "E_SCOPE"
    assert code(op="get", ctx=CTX, params={"id": "m999"})[0] == "E_NOT_FOUND"
    assert code(op="store", ctx=CTX, params={"text": "<private>x</private>"})[0] == "E_PARAMS"
    assert (
        code(op="publish", params={"events": [{"v": 1, "type": "hello", "id": "1", "src": "s", "ts": 1}]})[0]
        == "E_PARAMS"
    )


def test_publish_store_get_forget_over_rpc(daemon: DaemonProcess) -> None:
    ctx = {**CTX, "run_id": "r9"}
    events = [
        {
            "v": 1,
            "type": "llm_input",
            "id": "1",
            "src": "rpc-1",
            "seq": 1,
            "ts": 5_000,
            "ctx": ctx,
            "event": {"prompt": "The gate key hangs by the door."},
        },
        {
            "v": 1,
            "type": "llm_output",
            "id": "2",
            "src": "rpc-1",
            "seq": 2,
            "ts": 6_000,
            "ctx": ctx,
            "event": {"assistantTexts": ["Got it."]},
        },
    ]
    for _ in range(2):  # the transport may repeat a request
        assert call(rpc(daemon), {"v": 1, "id": "p", "op": "publish", "params": {"events": events}})["result"] == {
            "upto": {"rpc-1": 2}
        }
    call(rpc(daemon), {"v": 1, "id": "d", "op": "drain"})
    found = call(rpc(daemon), {"v": 1, "id": "s", "op": "search", "ctx": CTX, "params": {"query": "gate key"}})[
        "result"
    ]["memories"]
    assert len(found) == 1
    shown = call(rpc(daemon), {"v": 1, "id": "g", "op": "get", "ctx": CTX, "params": {"id": found[0]["id"]}})["result"]
    assert shown["turn"]["user"] == "The gate key hangs by the door."
    assert shown["turn"]["opened_ms"] == 5_000
    for expected in ([found[0]["id"]], []):
        reply = call(rpc(daemon), {"v": 1, "id": "f", "op": "forget", "ctx": CTX, "params": {"id": found[0]["id"]}})
        assert reply["result"] == {"forgotten": expected}
    assert (
        call(rpc(daemon), {"v": 1, "id": "s", "op": "search", "ctx": CTX, "params": {"query": "gate key"}})["result"][
            "memories"
        ]
        == []
    )
    first = call(
        rpc(daemon), {"v": 1, "id": "w", "op": "store", "ctx": CTX, "params": {"text": "Bins go out on Monday."}}
    )["result"]
    again = call(
        rpc(daemon), {"v": 1, "id": "w", "op": "store", "ctx": CTX, "params": {"text": "Bins go out on Monday."}}
    )["result"]
    assert (first["stored"], again["stored"], first["id"] == again["id"]) == (True, False, True)


def test_recall_over_rpc_is_the_answer_of_the_bus(daemon: DaemonProcess) -> None:
    call(
        rpc(daemon),
        {
            "v": 1,
            "id": "w",
            "op": "store",
            "ctx": CTX,
            "params": {"text": "The greenhouse thermostat is set to 14 degrees."},
        },
    )
    request = {
        "v": 1,
        "id": "r",
        "op": "recall",
        "ttl_ms": 5_000,
        "ctx": CTX,
        "params": {"prompt": "What is the greenhouse thermostat set to?"},
    }
    result = call(rpc(daemon), request)["result"]
    assert result["status"] == "ok"
    assert "14 degrees" in result["text"]


def test_tcp_needs_the_token_and_ipc_does_not(short_folder: Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with DaemonProcess(short_folder, rpc__tcp_port=str(port)) as daemon:
        token_path = daemon.runtime_dir / "rpc.token"
        assert stat.S_IMODE(token_path.stat().st_mode) == 0o600
        address = f"tcp://127.0.0.1:{port}"
        request = {"v": 1, "id": "x", "op": "status"}
        assert call(address, request)["error"]["code"] == "E_TOKEN"
        assert call(address, {**request, "token": "wrong"})["error"]["code"] == "E_TOKEN"
        assert call(address, {**request, "token": token_path.read_text().strip()})["ok"]
        assert call(rpc(daemon), request)["ok"]


def test_lost_and_given_up_events(bus: Bus) -> None:
    bus.send(bus.envelope("session_start", ctx=CTX, seq=1))
    bus.send(bus.envelope("session_start", ctx=CTX, seq=4))
    ack = bus.receive("ack")
    while ack["highest"] < 4:
        ack = bus.receive("ack")
    assert (ack["upto"], ack["highest"]) == (1, 4)
    welcome = bus.hello(oldest=4, lost=2)
    assert (welcome["upto"], welcome["highest"]) == (4, 4)
    bus.send(bus.envelope("session_start", ctx=CTX, seq=4))  # a duplicate is acknowledged again
    assert bus.receive("ack")["upto"] == 4
