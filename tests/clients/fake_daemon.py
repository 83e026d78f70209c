"""A daemon of a few lines that keeps the protocol, and breaks it where a test tells it to.

Its framing is written out here, not taken from the client: an error there must not cancel out.
"""

import asyncio
import contextlib
import json
import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from recalld_client import Client

Map = dict[str, Any]
PUB, SUB, REQ, REP = 0x20, 0x21, 0x30, 0x31
CTX = {"agent_id": "main", "session_key": "agent:main:chat"}


def handshake(protocol: int) -> bytes:
    return struct.pack(">4sHH", b"\0SP\0", protocol, 0)


def frame(body: bytes, *, tcp: bool = False) -> bytes:
    return (b"" if tcp else b"\x01") + struct.pack(">Q", len(body)) + body


async def read_frame(reader: asyncio.StreamReader, *, tcp: bool = False) -> bytes:
    if not tcp:
        assert await reader.readexactly(1) == b"\x01"
    (length,) = struct.unpack(">Q", await reader.readexactly(8))
    return await reader.readexactly(length)


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Wait for a condition; the bound is for a test that fails."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - most conditions are about the client, which tells nobody
            await asyncio.sleep(0.002)


class Disk:
    """What a daemon has stored of one src; it survives the daemon."""

    def __init__(self) -> None:
        self.events: dict[int, Map] = {}
        self.upto = 0

    def settle(self, oldest: int = 0) -> None:
        self.upto = max(self.upto, oldest - 1)
        while self.upto + 1 in self.events:
            self.upto += 1

    @property
    def highest(self) -> int:
        return max(self.events, default=self.upto)


class FakeDaemon:
    def __init__(self, runtime_dir: Path) -> None:
        self.runtime_dir = runtime_dir
        # How it behaves; tests change these.
        self.welcoming = True
        self.reading = asyncio.Event()
        self.reading.set()
        self.acking = True
        self.handshakes: dict[str, bytes] = {}
        self.limits: Map = {}
        self.drops: Callable[[Map], bool] = lambda message: False
        self.errors: Callable[[Map], str | None] = lambda message: None
        self.contexts: Callable[[Map], Iterable[Map]] = lambda question: [
            {"status": "ok", "text": f"about {question['event']['prompt']}", "tokens": 3, "memories": [{"id": "m1"}]}
        ]
        self.replies: Callable[[Map], Map | None] = lambda request: {"ok": True, "result": {"op": request["op"]}}
        # What it saw.
        self.disks: dict[str, Disk] = {}
        self.received: list[Map] = []
        self.requests: list[Map] = []
        self.request_keys: list[bytes] = []
        self.dials: dict[str, int] = {"events": 0, "context": 0, "rpc": 0}
        self.dialled_at: list[float] = []
        self.writers: dict[str, set[asyncio.StreamWriter]] = {"events": set(), "context": set(), "rpc": set()}
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        for name, serve in (("events", self._events), ("context", self._context), ("rpc", self._rpc)):
            path = self.runtime_dir / f"{name}.ipc"
            path.unlink(missing_ok=True)
            self._servers.append(await asyncio.start_unix_server(self._serving(name, serve), path))

    async def listen_tcp(self) -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._rpc(reader, writer, tcp=True)

        server = await asyncio.start_server(self._serving("rpc", serve), "127.0.0.1", 0)
        self._servers.append(server)
        port = server.sockets[0].getsockname()[1]
        assert isinstance(port, int)
        return port

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()
        self.hang_up()
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def hang_up(self, *names: str) -> None:
        for name in names or tuple(self.writers):
            for writer in self.writers[name]:
                writer.transport.abort()

    def inject(self, name: str, raw: bytes) -> None:
        """Bytes as they are, to everyone on an endpoint."""
        for writer in self.writers[name]:
            writer.write(raw)

    def publish(self, src: str, payload: Map) -> None:
        envelope = {"v": 1, "src": src, "ts": int(time.time() * 1000), "id": f"d{time.monotonic_ns()}"}
        self.inject("context", frame(f"ctx/{src}\0".encode() + json.dumps(envelope | payload).encode()))

    def ack(self, src: str) -> None:
        disk = self.disks[src]
        self.publish(src, {"type": "ack", "upto": disk.upto, "highest": disk.highest})

    def of_type(self, *types: str) -> list[Map]:
        return [message for message in self.received if message["type"] in types]

    @property
    def seqs(self) -> list[int]:
        """The seq of every kept event in the order of arrival, repeats too."""
        return [message["seq"] for message in self.received if "seq" in message]

    def _serving(self, name: str, serve: Callable[..., Any]) -> Callable[..., Any]:
        protocol = {"events": SUB, "context": PUB, "rpc": REP}[name]
        peer = {"events": PUB, "context": SUB, "rpc": REQ}[name]

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            self.dials[name] += 1
            self.dialled_at.append(time.monotonic())
            try:
                writer.write(self.handshakes.get(name, handshake(protocol)))
                assert await reader.readexactly(8) == handshake(peer)
                self.writers[name].add(writer)
                await serve(reader, writer)
            except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass  # swallowed: the task ends here, and asyncio would log what is left of it
            finally:
                self.writers[name].discard(writer)
                self._tasks.discard(task)
                writer.transport.abort()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

        return connected

    async def _context(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read(1) == b"", "a SUB says nothing after its handshake"

    async def _events(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await self.reading.wait()
            message = json.loads(await read_frame(reader))
            if self.drops(message):
                continue
            self.received.append(message)
            src, re = message["src"], message["id"]
            disk = self.disks.setdefault(src, Disk())
            if (code := self.errors(message)) is not None:
                self.publish(src, {"type": "error", "re": re, "code": code, "message": "no", "remedy": "none"})
            elif message["type"] == "hello":
                if self.welcoming:
                    disk.settle(message["event"]["oldest"])
                    limits = {"message_bytes_max": 4194304, "unacked_max": 8192} | self.limits
                    answer = {"type": "welcome", "re": re, "protocol": 1, "limits": limits}
                    self.publish(src, answer | {"upto": disk.upto, "highest": disk.highest})
            elif message["type"] == "before_prompt_build":
                for answer in self.contexts(message):
                    self.publish(src, {"type": "context", "re": re} | answer)
            else:
                disk.events[message["seq"]] = message
                disk.settle()
                if self.acking:
                    self.ack(src)

    async def _rpc(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, tcp: bool = False) -> None:
        while True:
            body = await read_frame(reader, tcp=tcp)
            assert body[0] & 0x80
            request = json.loads(body[4:])
            self.requests.append(request)
            self.request_keys.append(body[:4])
            reply = self.replies(request)
            if reply is not None:
                payload = json.dumps({"v": 1, "re": request["id"]} | reply).encode()
                writer.write(frame(body[:4] + payload, tcp=tcp))


def connect(fake: FakeDaemon, **kwargs: Any) -> Client:
    return Client("test", fake.runtime_dir, **kwargs)


def emit(client: Client, count: int) -> list[int]:
    return [client.emit("llm_input", {"prompt": f"number {number}"}, CTX) for number in range(count)]


class Spiteful:
    def __str__(self) -> str:
        raise RuntimeError("no")
