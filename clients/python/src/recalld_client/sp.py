"""The SP wire protocol of nanomsg, as much of it as a client needs: handshake and framing over Unix sockets and TCP."""

import asyncio
import contextlib
import enum
import os

FRAME_BYTES_MAX = 16 * 1024 * 1024
"""A longer frame is no message of ours (the bound of a message is 4 MiB): the length is garbage or an attack."""

DIAL_TIMEOUT_S = 10.0
"""SP peers drop a connection whose other side says nothing for this long."""

Address = str | os.PathLike[str] | tuple[str, int]
"""The path of a Unix socket, or host and port."""


class SpError(ConnectionError):
    """The peer closed the connection, or spoke something else than this protocol. The connection is of no more use."""


class Protocol(enum.IntEnum):
    """SP protocol numbers, as they stand in the handshake."""

    PUB = 0x20
    SUB = 0x21
    REQ = 0x30
    REP = 0x31


_PEERS = {
    Protocol.PUB: Protocol.SUB,
    Protocol.SUB: Protocol.PUB,
    Protocol.REQ: Protocol.REP,
    Protocol.REP: Protocol.REQ,
}


def handshake(protocol: Protocol) -> bytes:
    """The eight bytes with which a side that speaks `protocol` opens a connection."""
    return b"\0SP\0" + protocol.to_bytes(2, "big") + b"\0\0"


class Pipe:
    """One connection after its handshake: whole messages in, whole messages out. Made by `dial`."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, marker: bytes, frame_bytes_max: int
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._marker = marker
        self._frame_bytes_max = frame_bytes_max

    @property
    def backlog(self) -> int:
        """Bytes that were written and that the operating system has not taken yet."""
        return self._writer.transport.get_write_buffer_size()

    def write(self, *messages: bytes) -> None:
        """Queue messages, each as one frame, without waiting. Silent on a closed connection: `read` tells of that."""
        if self._writer.transport.is_closing():
            return
        chunks: list[bytes] = []
        for message in messages:
            chunks.append(self._marker + len(message).to_bytes(8, "big"))
            chunks.append(message)
        self._writer.writelines(chunks)

    async def drain(self) -> None:
        """Wait until the queue is short again. Raises OSError when the connection is gone."""
        await self._writer.drain()

    async def read(self) -> bytes:
        """The body of the next frame. Raises SpError at the end of the connection, also in the middle of a frame, and
        on a frame that is malformed or longer than the bound; other OSErrors as the operating system has them."""
        marker_bytes = len(self._marker)
        head = await self._exactly(marker_bytes + 8)
        if not head.startswith(self._marker):
            raise SpError(f"frame of unknown kind {head[0]:#04x}")
        length = int.from_bytes(head[marker_bytes:], "big")
        if length > self._frame_bytes_max:
            raise SpError(f"frame of {length} bytes, the bound is {self._frame_bytes_max}")
        return await self._exactly(length)

    async def aclose(self) -> None:
        """Close at once. What the operating system has not taken is dropped: waiting for a peer that stopped reading
        could take forever."""
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def greet(self, protocol: Protocol) -> None:
        """Exchange handshakes. Raises SpError when the peer does not speak the counterpart of `protocol`."""
        self._writer.write(handshake(protocol))
        got, want = await self._exactly(8), handshake(_PEERS[protocol])
        if got != want:
            raise SpError(f"handshake {got.hex(' ')}, expected {want.hex(' ')}")

    async def _exactly(self, count: int) -> bytes:
        try:
            return await self._reader.readexactly(count)
        except asyncio.IncompleteReadError as error:
            raise SpError(f"closed by the peer, {len(error.partial)} bytes into {count}") from None


async def dial(
    address: Address,
    protocol: Protocol,
    *,
    timeout_s: float = DIAL_TIMEOUT_S,
    frame_bytes_max: int = FRAME_BYTES_MAX,
) -> Pipe:
    """Connect to `address` as `protocol` and exchange handshakes.

    Raises OSError when nobody listens there, its subclass TimeoutError after `timeout_s` seconds, and its subclass
    SpError when the listener is not the counterpart of `protocol`.
    """
    async with asyncio.timeout(timeout_s):
        if isinstance(address, tuple):
            reader, writer = await asyncio.open_connection(*address)
            marker = b""
        else:
            reader, writer = await asyncio.open_unix_connection(address)
            marker = b"\x01"
        pipe = Pipe(reader, writer, marker=marker, frame_bytes_max=frame_bytes_max)
        try:
            await pipe.greet(protocol)
        except BaseException:
            await pipe.aclose()
            raise
        return pipe
