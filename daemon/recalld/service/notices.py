"""What is published on `context`: each publisher's answers, acknowledgements and notices, in its own encoding."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import uuid4

import msgspec

from recalld.core.sequence import Source
from recalld.wire.codec import Encoding, Sender, encode
from recalld.wire.errors import REMEDY, Code, ProtocolError
from recalld.wire.messages import (
    PROTOCOL_VERSION,
    SUPPORTED_VERSIONS,
    Ack,
    Captured,
    Context,
    ContextBody,
    DaemonInfo,
    Error,
    Event,
    Limits,
    Welcome,
)

ENCODINGS_MAX = 1_024  # publishers whose encoding is known, the least recent forgotten first


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Notices:
    """`send(src, payload)` publishes on a topic, from any thread, without waiting."""

    def __init__(self, send: Callable[[str, bytes], None], daemon: DaemonInfo) -> None:
        self._send = send
        self._daemon = daemon
        self._encodings: dict[str, Encoding] = {}

    def remember(self, src: str, encoding: Encoding) -> None:
        """The encoding for what is published to `src` unasked; JSON for one that is forgotten."""
        self._encodings.pop(src, None)
        self._encodings[src] = encoding
        if len(self._encodings) > ENCODINGS_MAX:
            del self._encodings[next(iter(self._encodings))]

    def _publish(self, message: msgspec.Struct, src: str) -> None:
        self._send(src, encode(message, self._encodings.get(src, Encoding.JSON)))

    def welcome(self, hello: Event, source: Source) -> None:
        self._publish(
            Welcome(
                v=PROTOCOL_VERSION,
                type="welcome",
                id=uuid4().hex,
                re=hello.id,
                src=hello.src,
                ts=now_ms(),
                protocol=PROTOCOL_VERSION,
                daemon=self._daemon,
                upto=source.upto,
                highest=source.highest,
                limits=Limits(),
            ),
            hello.src,
        )

    def ack(self, src: str, source: Source) -> None:
        self._publish(Ack(PROTOCOL_VERSION, "ack", src, now_ms(), source.upto, source.highest), src)

    def captured(self, captured: Captured) -> None:
        self._publish(captured, captured.src)

    def answer_to(self, question: Event) -> Callable[[ContextBody], None]:
        """A function that publishes the answer to a question; it may be called in any thread."""
        src, re = question.src, question.id
        encoding = self._encodings.get(src, Encoding.JSON)

        def answer(body: ContextBody) -> None:
            fields = {f: getattr(body, f) for f in ContextBody.__struct_fields__}
            context = Context(v=PROTOCOL_VERSION, type="context", id=uuid4().hex, re=re, src=src, ts=now_ms(), **fields)
            self._send(src, encode(context, encoding))

        return answer

    def refused(self, sender: Sender, e: ProtocolError) -> None:
        """Tell the sender of a message that was refused, if it is known."""
        if sender.src is None:
            return
        error = self._error(sender.src, e.code, e.message)
        error.re = sender.id
        if e.code is Code.VERSION:
            error.supported = list(SUPPORTED_VERSIONS)
        self._send(sender.src, encode(error, sender.encoding))

    def failed(self, src: str, code: Code, message: str) -> None:
        """Tell a publisher of a fault that is not one message's."""
        self._publish(self._error(src, code, message), src)

    def _error(self, src: str, code: Code, message: str) -> Error:
        return Error(
            v=PROTOCOL_VERSION,
            type="error",
            id=uuid4().hex,
            src=src,
            ts=now_ms(),
            code=code,
            message=message,
            remedy=REMEDY[code],
        )
