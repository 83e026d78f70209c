"""The bus: the only importer of pynng. Listeners that only their own user can use, and repaired waiting.

Measured reasons (pynng 0.9.0, NNG 1.11): the peer's uid and the socket's mode are not in the Python API, so both go
through its own cffi library; waiting inside a cancel scope leaks a foreign CancelledError unless followed by a
checkpoint; reading on the receive descriptor has twice the throughput of `arecv`; a cancelled `asend` leaks its message.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pynng
from pynng._nng import ffi, lib

from recalld.errors import AlreadyRunningError, BusError, FolderError
from recalld.wire.messages import UNACKED_MAX

FRAME_BYTES_MAX = (
    16 * 1024 * 1024
)  # nng closes the connection above this; between it and 4 MiB the sender gets E_TOO_LARGE
PATH_BYTES_MAX = 107  # of a Unix socket's address
BATCH_MAX = 256  # messages taken in one turn of the loop, so that timers and answers are never far away


def _listen(socket: Any, address: str, refused: Callable[[int], None]) -> None:
    """Listen with mode 0600 on ipc, refusing peers of another user. Raises BusError or AlreadyRunningError."""
    if address.startswith("ipc://"):
        _check_path(Path(address.removeprefix("ipc://")))
        socket.add_pre_pipe_connect_cb(_uid_check(os.getuid(), refused))
    listener = ffi.new("nng_listener *")
    _check(lib.nng_listener_create(listener, socket.socket, address.encode()), address)
    if address.startswith("ipc://"):
        _check(lib.nng_listener_set_int(listener[0], b"ipc:permissions", 0o600), address)
    _check(lib.nng_listener_start(listener[0], 0), address)


def _check(code: int, address: str) -> None:
    try:
        pynng.exceptions.check_err(code)
    except pynng.AddressInUse:
        raise AlreadyRunningError(
            f"{address} is in use: another recalld listens there. Stop it, or set another runtime_dir"
        ) from None
    except pynng.NNGException as e:
        raise BusError(f"cannot listen on {address}: {e}") from None


def _check_path(path: Path) -> None:
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise FolderError(f"the socket path {path} is longer than {PATH_BYTES_MAX} bytes: set a shorter runtime_dir")
    if path.exists() and not stat.S_ISSOCK(path.lstat().st_mode):  # nng would silently delete it
        raise FolderError(f"{path} exists and is not a socket: move it away, or set another runtime_dir")


def _uid_check(own: int, refused: Callable[[int], None]) -> Callable[[Any], None]:
    """Closes an ipc connection of another user. A TCP one has no uid: there each request carries a token."""

    def check(pipe: Any) -> None:
        uid = ffi.new("uint64_t *")
        code = lib.nng_pipe_get_uint64(pipe.pipe, b"ipc:peer-uid", uid)
        if code != lib.NNG_ENOTSUP and (code != 0 or uid[0] != own):
            pipe.close()
            refused(int(uid[0]))

    return check


class Events:
    """`events`: SUB, subscribed to everything. Hands over batches; never blocks a publisher."""

    def __init__(self, address: str, refused: Callable[[int], None]) -> None:
        self._socket = pynng.Sub0(topics=b"", recv_buffer_size=UNACKED_MAX, recv_max_size=FRAME_BYTES_MAX)
        try:
            _listen(self._socket, address, refused)
        except BaseException:
            self._socket.close()
            raise
        self._fd: int | None = None

    def start(self, receive: Callable[[list[bytes]], None]) -> None:
        """Call `receive` in the running loop with each batch of messages."""
        fd = self._fd = self._socket.recv_fd
        asyncio.get_running_loop().add_reader(fd, self._drain, receive)

    def _drain(self, receive: Callable[[list[bytes]], None]) -> None:
        batch: list[bytes] = []
        try:
            while len(batch) < BATCH_MAX:
                batch.append(self._receive())
        except (pynng.TryAgain, pynng.Closed):
            pass
        if batch:
            receive(batch)

    def _receive(self) -> bytes:
        try:
            data: bytes = self._socket.recv(block=False)
        except RuntimeError:  # pynng cannot make bytes of an empty message
            return b""
        return data

    def close(self) -> None:
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
        self._socket.close()


class ContextPublisher:
    """`context`: PUB. `publish` may be called from any thread, never blocks, and drops for subscribers that do not read."""

    def __init__(self, address: str, refused: Callable[[int], None]) -> None:
        self._socket = pynng.Pub0(send_buffer_size=UNACKED_MAX)
        try:
            _listen(self._socket, address, refused)
        except BaseException:
            self._socket.close()
            raise

    def publish(self, src: str, payload: bytes) -> None:
        try:
            self._socket.send(b"ctx/" + src.encode() + b"\0" + payload)
        except pynng.Closed:
            return  # an answer that was under way while the daemon stopped

    def close(self) -> None:
        self._socket.close()


class Rpc:
    """`rpc`: REP, listening on ipc and, where configured, on loopback TCP. Many requests at once, through contexts."""

    def __init__(self, addresses: list[str], refused: Callable[[int], None]) -> None:
        self._socket = pynng.Rep0(recv_max_size=FRAME_BYTES_MAX, recv_buffer_size=UNACKED_MAX)
        try:
            for address in addresses:
                _listen(self._socket, address, refused)
        except BaseException:
            self._socket.close()
            raise
        self._closing = False

    async def serve(self, handle: Callable[[bytes, bool], Any], contexts: int) -> None:
        """Answer until cancelled or closed: `await handle(request, is_tcp)` gives each reply. Never raises from a request."""
        async with anyio.create_task_group() as tg:
            for _ in range(contexts):
                tg.start_soon(self._serve_one, handle)

    async def _serve_one(self, handle: Callable[[bytes, bool], Any]) -> None:
        context = self._socket.new_context()
        try:
            while not self._closing:
                message = await _repaired(context.arecv_msg)
                is_tcp = message.pipe is None or isinstance(
                    message.pipe.remote_address, pynng.sockaddr.InAddr | pynng.sockaddr.In6Addr
                )
                reply = await handle(message.bytes, is_tcp)
                with anyio.CancelScope(shield=True):
                    await _repaired(context.asend, reply)
        except pynng.Closed:
            return
        finally:
            context.close()

    def close(self) -> None:
        self._closing = True
        self._socket.close()


async def _repaired(wait: Callable[..., Any], *args: Any) -> Any:
    """Await a pynng operation. pynng swallows the cancellation it was given and raises one of its own, which anyio does
    not know; a checkpoint raises the right one instead."""
    try:
        return await wait(*args)
    except asyncio.CancelledError:
        await anyio.lowlevel.checkpoint()
        raise


class Tap:
    """Reads everything on `context` (each message with its topic), for `recalld tail`. Blocking."""

    def __init__(self, address: str) -> None:
        self._socket = pynng.Sub0(topics=b"", recv_buffer_size=UNACKED_MAX, recv_timeout=500)
        try:
            self._socket.dial(address, block=True)
        except pynng.NNGException as e:
            self._socket.close()
            raise BusError(f"no daemon answers at {address}: {e}") from None

    def next(self) -> tuple[str, bytes] | None:
        """(topic, payload), or None if nothing came for half a second."""
        try:
            data: bytes = self._socket.recv()
        except pynng.Timeout:
            return None
        topic, _, payload = data.partition(b"\0")
        return topic.decode(errors="replace"), payload

    def close(self) -> None:
        self._socket.close()
