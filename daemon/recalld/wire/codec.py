"""Bytes to Structs and back. The first byte tells JSON from MessagePack; an answer uses its question's encoding."""

from __future__ import annotations

import re
import reprlib
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import msgspec

from recalld.wire.errors import Code, ProtocolError
from recalld.wire.messages import (
    EVENT_TYPES,
    KEPT_TYPES,
    MESSAGE_BYTES_MAX,
    NESTING_MAX,
    SUPPORTED_VERSIONS,
    Event,
    Id,
    Request,
    Seq,
    Src,
)

T = TypeVar("T")

_json_encoder = msgspec.json.Encoder()
_msgpack_encoder = msgspec.msgpack.Encoder()
_FIELD = re.compile(r"\$\.?([^`]*)`?$")
_REQUIRED = re.compile(r"missing required field `([^`]+)`$")
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Encoding(Enum):
    JSON = "json"
    MSGPACK = "msgpack"


def encode(message: Any, encoding: Encoding) -> bytes:
    encoder = _json_encoder if encoding is Encoding.JSON else _msgpack_encoder
    return encoder.encode(message)


def encoding_of(data: bytes) -> Encoding:
    """The encoding by the first byte: `{` is JSON; a fixmap, map16 or map32 marker is MessagePack.

    Raises ProtocolError(E_MALFORMED) on anything else, and on an empty message.
    """
    first = data[0] if data else 0
    if first == 0x7B:
        return Encoding.JSON
    if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF):
        return Encoding.MSGPACK
    raise ProtocolError(Code.MALFORMED, "a message starts with `{` (JSON) or a MessagePack map marker")


class UnknownType(ProtocolError):
    """An event of a type we do not know: ignored, but its `seq` counts as received, so that its sender can move on."""

    def __init__(self, event: Event) -> None:
        super().__init__(Code.UNKNOWN_TYPE, f"event type `{event.type}` is not known")
        self.event = event


class _Versioned(msgspec.Struct):
    v: Any = None


class _WithSrc(msgspec.Struct):
    src: Src | None = None


class _WithId(msgspec.Struct):
    id: Id | None = None


class _WithSeq(msgspec.Struct):
    seq: Seq | None = None


class Sender(NamedTuple):
    """What can be told of the sender of a message that was refused."""

    src: str | None
    id: str | None
    seq: int | None
    encoding: Encoding


def _decode(data: bytes, kind: type[T], encoding: Encoding) -> T:
    if encoding is Encoding.JSON:
        return msgspec.json.decode(data, type=kind)
    return msgspec.msgpack.decode(data, type=kind)


def _decode_message(data: bytes, kind: type[T]) -> tuple[T, Encoding]:
    """Decode and check size, shape, version and bounds, in that order. Raises ProtocolError."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise ProtocolError(Code.TOO_LARGE, f"the message has {len(data)} bytes; the limit is {MESSAGE_BYTES_MAX}")
    encoding = encoding_of(data)
    try:
        version = _decode(data, _Versioned, encoding).v
        if type(version) is not int or version not in SUPPORTED_VERSIONS:  # `True` and `1.0` equal 1 in Python
            raise ProtocolError(Code.VERSION, f"protocol version {reprlib.repr(version)} is not supported")
        try:
            return _decode(data, kind, encoding), encoding
        except msgspec.ValidationError:
            return msgspec.convert(_without_nulls(_decode(data, dict[str, Any], encoding)), kind), encoding
    except msgspec.ValidationError as e:
        raise ProtocolError(Code.ENVELOPE, _named(e)) from None
    except _UNREADABLE as e:
        raise ProtocolError(Code.MALFORMED, f"the message does not decode as {encoding.value}: {e}") from None


def _without_nulls(value: Any) -> Any:
    """`null` is the same as a field left out. msgspec refuses it for a field whose default is not None, so a message
    that is refused gets a second reading without its nulls: the common case pays nothing for the rare one."""
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _check_payload(payload: dict[str, Any], encoding: Encoding) -> None:
    """Whatever passes here can be encoded again, at any depth of the stack: nobody downstream meets a surprise."""
    level: list[Any] = [payload]
    for _ in range(NESTING_MAX):
        inner = (item for value in level for item in (value.values() if isinstance(value, dict) else value))
        level = [item for item in inner if isinstance(item, (dict, list))]
        if not level:
            break
    else:
        raise ProtocolError(Code.MALFORMED, f"the message is nested more than {NESTING_MAX} levels deep")
    if encoding is Encoding.MSGPACK:  # it has extension types, and keys that are lists, nil or booleans; JSON has not
        try:
            _json_encoder.encode(payload)
        except TypeError as e:
            raise ProtocolError(Code.MALFORMED, f"the message holds what JSON cannot say: {e}") from None


def decode_event(data: bytes) -> tuple[Event, Encoding]:
    """A message from `events`. Raises ProtocolError with the code that protocol/README.md gives for the fault."""
    event, encoding = _decode_message(data, Event)
    _check_payload(event.event, encoding)
    check_event(event)
    return event, encoding


def check_event(event: Event) -> None:
    """The rules a type cannot say: known type, `seq` where the type is kept and nowhere else."""
    if event.v not in SUPPORTED_VERSIONS:
        raise ProtocolError(Code.VERSION, f"protocol version {event.v!r} is not supported")
    if event.type not in EVENT_TYPES:
        raise UnknownType(event)
    if event.type in KEPT_TYPES and event.seq is None:
        raise ProtocolError(Code.ENVELOPE, f"seq: `{event.type}` is kept, so it needs a seq")
    if event.type not in KEPT_TYPES and event.seq is not None:
        raise ProtocolError(Code.ENVELOPE, f"seq: `{event.type}` is not kept, so it has none")


def decode_request(data: bytes) -> tuple[Request, Encoding]:
    """A message from `rpc`. Raises ProtocolError."""
    request, encoding = _decode_message(data, Request)
    _check_payload(request.params, encoding)
    return request, encoding


def convert(params: dict[str, Any], kind: type[T]) -> T:
    """An operation's params as its Struct. Raises ProtocolError(E_PARAMS) naming the parameter."""
    try:
        try:
            return msgspec.convert(params, kind)
        except msgspec.ValidationError:
            return msgspec.convert(_without_nulls(params), kind)
    except msgspec.ValidationError as e:
        raise ProtocolError(Code.PARAMS, _named(e)) from None


def sender_of(data: bytes) -> Sender:
    """As much as can be read of a message that was refused; never raises.

    Each field is None unless it is valid by itself: a `src` becomes a topic and an `id` a `re`. JSON is for bytes that
    are neither encoding: a person may be at the other end.
    """
    try:
        encoding = encoding_of(data)
    except ProtocolError:
        return Sender(None, None, None, Encoding.JSON)
    if len(data) > MESSAGE_BYTES_MAX:
        return Sender(None, None, None, encoding)
    return Sender(
        _salvage(data, _WithSrc, encoding).src,
        _salvage(data, _WithId, encoding).id,
        _salvage(data, _WithSeq, encoding).seq,
        encoding,
    )


def _salvage(data: bytes, kind: type[T], encoding: Encoding) -> T:
    try:
        return _decode(data, kind, encoding)
    except _UNREADABLE:
        return kind()


def _named(e: msgspec.ValidationError) -> str:
    """`field: what is wrong`, from msgspec's `what is wrong - at `$.field``."""
    head, _, path = str(e).partition(" - at ")
    found = _FIELD.search(path)
    field = found[1] if found else ""
    if required := _REQUIRED.search(head):
        return f"{field}.{required[1]}: it is required".lstrip(".")
    return f"{field}: {head}" if field else str(e)
