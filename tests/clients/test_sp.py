"""Handshake and framing, byte by byte."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from recalld_client.sp import Address, Pipe, Protocol, SpError, dial

pytestmark = pytest.mark.anyio

SUB = bytes.fromhex("0053500000210000")
PUB = bytes.fromhex("0053500000200000")
REQ = bytes.fromhex("0053500000300000")
REP = bytes.fromhex("0053500000310000")


class Peer:
    """The listening side, by hand."""

    def __init__(self) -> None:
        self.address: Address = ""
        self.accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def accept(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await self.accepted.get()


@contextlib.asynccontextmanager
async def listening(address: Address) -> AsyncIterator[Peer]:
    peer = Peer()
    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        peer.accepted.put_nowait((reader, writer))

    if isinstance(address, tuple):
        server = await asyncio.start_server(connected, *address)
        peer.address = ("127.0.0.1", server.sockets[0].getsockname()[1])
    else:
        server = await asyncio.start_unix_server(connected, address)
        peer.address = address
    try:
        yield peer
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def pair(
    address: Address, protocol: Protocol = Protocol.SUB, answer: bytes = PUB
) -> AsyncIterator[tuple[Pipe, asyncio.StreamReader, asyncio.StreamWriter]]:
    async with listening(address) as peer:
        dialling = asyncio.create_task(dial(peer.address, protocol))
        reader, writer = await peer.accept()
        writer.write(answer)
        async with contextlib.aclosing(await dialling) as pipe:
            yield pipe, reader, writer


@pytest.mark.parametrize(
    ("protocol", "ours", "theirs"), [(Protocol.PUB, PUB, SUB), (Protocol.SUB, SUB, PUB), (Protocol.REQ, REQ, REP)]
)
async def test_each_protocol_greets_and_expects_its_counterpart(
    runtime_dir: Path, protocol: Protocol, ours: bytes, theirs: bytes
) -> None:
    async with pair(runtime_dir / "s", protocol, theirs) as (_, reader, _writer):
        assert await reader.readexactly(8) == ours


@pytest.mark.parametrize("answer", [SUB, REP, b"HTTP/1.1", b"\0SP\1" + PUB[4:], PUB[:7] + b"\1"])
async def test_a_wrong_handshake_closes_the_connection(runtime_dir: Path, answer: bytes) -> None:
    async with listening(runtime_dir / "s") as peer:
        dialling = asyncio.create_task(dial(peer.address, Protocol.SUB))
        reader, writer = await peer.accept()
        writer.write(answer)
        with pytest.raises(SpError, match="handshake"):
            await dialling
        assert await reader.read() == SUB


async def test_a_peer_that_says_nothing_is_left(runtime_dir: Path) -> None:
    async with listening(runtime_dir / "s") as peer:
        with pytest.raises(TimeoutError):
            await dial(peer.address, Protocol.SUB, timeout_s=0.05)
        reader, _ = await peer.accept()
        assert await reader.read() == SUB


async def test_a_peer_that_closes_during_the_handshake(runtime_dir: Path) -> None:
    async with listening(runtime_dir / "s") as peer:
        dialling = asyncio.create_task(dial(peer.address, Protocol.SUB))
        _, writer = await peer.accept()
        writer.write(PUB[:5])
        writer.close()
        with pytest.raises(SpError, match="5 bytes into 8"):
            await dialling


async def test_nobody_listens(runtime_dir: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await dial(runtime_dir / "s", Protocol.SUB)
    with pytest.raises(OSError, match="too long"):
        await dial(runtime_dir / ("s" * 200), Protocol.SUB)


async def test_frames_over_a_unix_socket_carry_a_marker(runtime_dir: Path) -> None:
    async with pair(runtime_dir / "s") as (pipe, reader, writer):
        pipe.write(b"abc", b"")
        await pipe.drain()
        assert await reader.readexactly(8 + 12 + 9) == SUB + b"\x01" + bytes(7) + b"\x03abc" + b"\x01" + bytes(8)
        writer.write(b"\x01" + bytes(7) + b"\x02hi\x01" + bytes(8))
        assert await pipe.read() == b"hi"
        assert await pipe.read() == b""


async def test_frames_over_tcp_carry_none() -> None:
    async with pair(("127.0.0.1", 0), Protocol.REQ, REP) as (pipe, reader, writer):
        pipe.write(b"abc")
        await pipe.drain()
        assert await reader.readexactly(8 + 11) == REQ + bytes(7) + b"\x03abc"
        writer.write(bytes(7) + b"\x02hi")
        assert await pipe.read() == b"hi"


async def test_a_frame_in_pieces_is_one_message(runtime_dir: Path) -> None:
    async with pair(runtime_dir / "s") as (pipe, _, writer):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        reading = asyncio.create_task(pipe.read())
        for byte in b"\x01" + bytes(7) + b"\x05he":
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert not reading.done()
        writer.write(b"llo")
        assert await reading == b"hello"


async def test_a_large_frame_within_the_bound_passes(runtime_dir: Path) -> None:
    body = bytes(5_000_000)
    async with pair(runtime_dir / "s") as (pipe, _, writer):
        writer.write(b"\x01" + len(body).to_bytes(8, "big") + body)
        assert await pipe.read() == body


async def test_a_frame_over_the_bound_is_refused_before_it_is_read(runtime_dir: Path) -> None:
    async with pair(runtime_dir / "s") as (pipe, _, writer):
        writer.write(b"\x01" + (16 * 1024 * 1024 + 1).to_bytes(8, "big"))
        with pytest.raises(SpError, match="16777217 bytes"):
            await pipe.read()


async def test_a_frame_of_another_kind_is_refused(runtime_dir: Path) -> None:
    async with pair(runtime_dir / "s") as (pipe, _, writer):
        writer.write(b"\x02" + bytes(8))
        with pytest.raises(SpError, match="0x02"):
            await pipe.read()


@pytest.mark.parametrize("part", [b"", b"\x01\0\0", b"\x01" + bytes(7) + b"\x05he"])
async def test_the_end_of_the_connection_also_inside_a_frame(runtime_dir: Path, part: bytes) -> None:
    async with pair(runtime_dir / "s") as (pipe, _, writer):
        writer.write(part)
        writer.close()
        with pytest.raises(SpError, match="closed by the peer"):
            await pipe.read()


async def test_writing_to_a_closed_connection_is_silent_and_drain_tells(runtime_dir: Path) -> None:
    async with pair(runtime_dir / "s") as (pipe, _, _writer):
        await pipe.aclose()
        for _ in range(10):
            pipe.write(b"x")
        with pytest.raises(OSError, match="lost"):
            await pipe.drain()


async def test_closing_does_not_wait_for_a_peer_that_stopped_reading(runtime_dir: Path) -> None:
    async with pair(runtime_dir / "s") as (pipe, _, _writer):
        pipe.write(bytes(8_000_000))
        assert pipe.backlog > 0
        async with asyncio.timeout(5):
            await pipe.aclose()
