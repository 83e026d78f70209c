"""Operations with a direct answer, over a REQ connection that is made when it is first needed."""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

from .messages import MESSAGE_BYTES_MAX, VERSION, Map, RecalldError, RecalldUnavailable, decode, encode
from .sp import Address, Pipe, Protocol, SpError, dial


class Rpc:
    """Many calls at a time over one connection. Belongs to the event loop in which it is used."""

    def __init__(self, address: Address, token: Callable[[], str | None]) -> None:
        self._address = address
        self._read_token = token
        self._token: str | None = None
        self._pipe: Pipe | None = None
        self._dialling = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._asked: dict[bytes, asyncio.Future[bytes]] = {}
        self._count = random.getrandbits(31)
        self._closed = False

    async def call(
        self, op: str, ctx: Mapping[str, Any] | None, params: Map, *, ttl_ms: int | None = None, timeout_s: float
    ) -> Map:
        """The `result` of one operation. Raises RecalldError when the daemon refuses it, RecalldUnavailable when there
        is no answer within `timeout_s` seconds."""
        self._count += 1
        request = {"v": VERSION, "id": f"r{self._count}", "op": op, "params": params}
        if ctx is not None:
            request["ctx"] = dict(ctx)
        if ttl_ms is not None:
            request["ttl_ms"] = ttl_ms
        try:
            async with asyncio.timeout(timeout_s):
                reply = decode(await self._ask(request))
        except OSError as error:
            problem = f"no reply within {timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
            raise RecalldUnavailable(f"{op}: {problem}") from error
        if reply is None:
            raise RecalldError("E_INTERNAL", f"{op}: the reply is not a JSON object")
        if reply.get("ok") is not True:
            refusal = reply.get("error")
            fields = refusal if isinstance(refusal, dict) else {}
            raise RecalldError(
                str(fields.get("code", "E_INTERNAL")), str(fields.get("message", "")), str(fields.get("remedy") or "")
            )
        result = reply.get("result")
        return result if isinstance(result, dict) else {}

    async def aclose(self) -> None:
        """Close the connection and allow no other; calls that wait fail."""
        self._closed = True
        if self._reader is not None and self._pipe is not None:
            self._reader.cancel()
            await asyncio.wait({self._reader})
            await self._end(self._pipe)  # a task cancelled before its first step has done nothing

    async def _ask(self, request: Map) -> bytes:
        pipe = await self._connected()
        try:
            return await self._exchange(pipe, request)
        except ConnectionError:
            # The connection ended under the request. Every operation can be done twice without harm.
            return await self._exchange(await self._connected(), request)

    async def _exchange(self, pipe: Pipe, request: Map) -> bytes:
        if self._token is not None:
            request["token"] = self._token
        try:
            payload = encode(request)
        except Exception as error:
            raise RecalldError("E_MALFORMED", f"{request['op']}: cannot be written as JSON: {error}") from error
        if len(payload) > MESSAGE_BYTES_MAX:
            raise RecalldError("E_TOO_LARGE", f"{request['op']}: {len(payload)} bytes", "send less")
        self._count += 1
        key = (0x80000000 | self._count & 0x7FFFFFFF).to_bytes(4, "big")
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[key] = reply
        try:
            pipe.write(key + payload)
            return await reply
        finally:
            self._asked.pop(key, None)

    async def _connected(self) -> Pipe:
        async with self._dialling:
            if self._pipe is None:
                self._check_open()
                self._token = self._read_token()  # a restarted daemon may have a new one
                pipe = await dial(self._address, Protocol.REQ)
                try:
                    self._check_open()
                except SpError:
                    await pipe.aclose()
                    raise
                self._pipe = pipe
                self._reader = asyncio.create_task(self._read(pipe), name="recalld rpc")
            return self._pipe

    def _check_open(self) -> None:
        if self._closed:
            raise SpError("the client was closed")

    async def _read(self, pipe: Pipe) -> None:
        try:
            while True:
                body = await pipe.read()
                reply = self._asked.pop(body[:4], None)
                if reply is not None and not reply.done():
                    reply.set_result(body[4:])
        except OSError:
            await self._end(pipe)

    async def _end(self, pipe: Pipe) -> None:
        self._pipe = None
        waiting, self._asked = self._asked, {}
        for reply in waiting.values():
            if not reply.done():
                reply.set_exception(SpError("the connection ended before the reply"))
        await pipe.aclose()
