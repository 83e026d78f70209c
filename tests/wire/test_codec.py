"""The codec, by example and by property."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recalld.wire import codec
from recalld.wire.codec import Encoding
from recalld.wire.errors import Code, ProtocolError
from recalld.wire.messages import (
    KEPT_TYPES,
    MESSAGE_BYTES_MAX,
    NESTING_MAX,
    Context,
    Event,
    Memory,
    Request,
)
from recalld.wire.operations import SearchParams

EVENT = {"v": 1, "type": "session_start", "id": "e1", "src": "gw-1", "ts": 5, "seq": 1}

# What both encodings can carry: text without surrogates, integers of 64 bits, numbers that are numbers.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.none() | texts
integers = st.integers(-(2**63), 2**64 - 1)
numbers = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | integers | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)
payloads = st.dictionaries(texts, values, max_size=4)
ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=128)
srcs = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", fullmatch=True)
seqs = st.integers(1, 2**53 - 1)
budgets = st.none() | st.integers(1, 60_000)
ctxs = st.fixed_dictionaries({}, optional={"agent_id": names, "session_key": names, "run_id": names, "trigger": names})
kept = st.builds(
    lambda **fields: msgspec.convert(fields, Event),
    v=st.just(1),
    type=st.sampled_from(sorted(KEPT_TYPES)),
    id=ids,
    src=srcs,
    ts=seqs,
    seq=seqs,
    ttl_ms=budgets,
    ctx=ctxs,
    event=payloads,
)
requests = st.builds(
    lambda **fields: msgspec.convert(fields, Request),
    v=st.just(1),
    id=ids,
    op=st.text("abcdef", min_size=1, max_size=64),
    ctx=ctxs,
    params=payloads,
    ttl_ms=budgets,
    token=names,
)
memories = st.builds(
    Memory,
    id=st.integers(1, 10**18).map("m{}".format),
    kind=st.sampled_from(["turn", "fact", "note"]),
    text=texts,
    created_ms=seqs,
    score=st.none() | numbers,
    run_ids=st.lists(texts, max_size=2),
    turn_id=st.none() | seqs,
)
contexts = st.builds(
    Context,
    v=st.just(1),
    type=st.just("context"),
    id=ids,
    re=ids,
    src=srcs,
    ts=seqs,
    status=st.sampled_from(["ok", "partial", "empty", "skipped", "error"]),
    elapsed_ms=st.floats(0, 1e6),
    text=texts,
    tokens=st.integers(0, 10_000),
    memories=st.lists(memories, max_size=3),
)
encodings = st.sampled_from(Encoding)


@given(kept, encodings)
def test_an_event_survives(event: Event, encoding: Encoding) -> None:
    data = codec.encode(event, encoding)
    assert codec.decode_event(data) == (event, encoding)
    assert codec.sender_of(data) == (event.src, event.id, event.seq, encoding)


@given(requests, encodings)
def test_a_request_survives(request: Request, encoding: Encoding) -> None:
    assert codec.decode_request(codec.encode(request, encoding)) == (request, encoding)


@given(contexts, encodings)
def test_a_context_survives(context: Context, encoding: Encoding) -> None:
    data = codec.encode(context, encoding)
    assert codec.encoding_of(data) is encoding
    decoder = msgspec.json.decode if encoding is Encoding.JSON else msgspec.msgpack.decode
    assert decoder(data, type=Context) == context


def feed(data: bytes) -> None:
    """Only a ProtocolError may come out, and what does decode can be encoded again."""
    src, id_, _, _ = codec.sender_of(data)
    assert src is None or (0 < len(src) <= 128 and "\0" not in src)
    assert id_ is None or 0 < len(id_) <= 128
    for decode in (codec.decode_event, codec.decode_request):
        refused = ""
        try:
            message, _ = decode(data)
            codec.encode(message, Encoding.JSON)
        except ProtocolError as e:
            refused = e.message
        assert len(refused) < 2000


def packed(value: bytes, field: str = "event") -> bytes:
    """A MessagePack event with raw bytes as the value of `field`, the last one."""
    return b"\x87" + msgspec.msgpack.encode(EVENT)[1:] + msgspec.msgpack.encode(field) + value


@given(st.binary(max_size=200))
def test_arbitrary_bytes(data: bytes) -> None:
    feed(data)
    feed(b"{" + data)
    feed(b"\x81" + data)
    feed(packed(b"\x81\xa1a" + data))


@given(st.dictionaries(st.sampled_from([*EVENT, "op", "ctx", "event", "params", "ttl_ms"]), values), encodings)
def test_arbitrary_values_in_known_fields(fields: dict[str, Any], encoding: Encoding) -> None:
    feed(codec.encode({**EVENT, "op": "status", **fields}, encoding))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b'{"v":1,"event":' + b"[" * 100_000, id="JSON nested without end"),
        pytest.param(b'{"v":' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="JSON version nested"),
        pytest.param(b'{"id":' + b'{"a":' * 100_000, id="JSON id nested"),
        pytest.param(packed(b"\x91" * 100_000, "x"), id="MessagePack nested without end"),
        pytest.param(packed(b"\x91" * 100_000, "v"), id="MessagePack version nested"),
        pytest.param(b'{"v":' + b"9" * 4000 + b"}", id="integer of 4000 digits"),
        pytest.param(b'{"v":' + b"9" * 100_000 + b"}", id="integer of 100000 digits"),
        pytest.param(b'{"v":1e400}', id="number out of range"),
        pytest.param(b'{"v":"' + b"x" * 100_000 + b'"}', id="version of 100000 characters"),
        pytest.param(b'{"v":NaN}', id="NaN"),
        pytest.param(b'{"v":1,"id":"\xff\xfe","src":"\xff"}', id="invalid UTF-8"),
        pytest.param(b'{"v":1,"v":2,"id":1,"id":"a"}', id="names twice"),
        pytest.param(packed(b"\xc7\x0c\xff" + b"\xff" * 12, "v"), id="timestamp out of range"),
        pytest.param(packed(b"\x81\xa1a\xc7\x0c\xff\0\0\0\0" + b"\x7f" * 8), id="timestamp after the last year"),
        pytest.param(packed(b"\xdd\xff\xff\xff\xff"), id="list of 4 billion"),
        pytest.param(b"\xdf\xff\xff\xff\xff", id="map of 4 billion"),
    ],
)
def test_known_traps(data: bytes) -> None:
    feed(data)
    with pytest.raises(ProtocolError):
        codec.decode_event(data)
    for end in range(0, len(data), 1 + len(data) // 50):
        feed(data[:end])


@given(st.integers(0, 200), st.integers(0, 255))
@example(0, 0xC1)
def test_truncated_and_changed_messages(position: int, byte: int) -> None:
    for encoding in Encoding:
        whole = codec.encode({**EVENT, "ctx": {"agent_id": "a"}, "event": {"a": [1, 2.5, None]}}, encoding)
        at = position % len(whole)
        feed(whole[:at])
        feed(whole[:at] + bytes([byte]) + whole[at + 1 :])


def nested(levels: int) -> bytes:
    return (
        json.dumps({**EVENT, "event": {"a": 0}}).replace("0}", "[" * (levels - 1) + "]" * (levels - 1) + "}").encode()
    )


def test_what_decodes_can_be_encoded_deeper_in_the_stack() -> None:
    """Without a bound on nesting, an event can just fit the stack of the reader and not that of the writer."""
    event, _ = codec.decode_event(nested(NESTING_MAX))
    assert codec.encode(event, Encoding.JSON)
    for levels in (NESTING_MAX + 1, 500, 900):
        with pytest.raises(ProtocolError) as caught:
            codec.decode_event(nested(levels))
        assert caught.value.code is Code.MALFORMED


def test_the_last_of_two_equal_names_counts() -> None:
    event, _ = codec.decode_event(json.dumps(EVENT).replace('"v": 1', '"v": 2, "v": 1, "id": "first"').encode())
    assert event.id == "e1"


def test_an_unknown_type_keeps_its_event() -> None:
    with pytest.raises(codec.UnknownType) as caught:
        codec.decode_event(codec.encode({**EVENT, "type": "dream"}, Encoding.MSGPACK))
    assert caught.value.event.seq == 1
    assert caught.value.code is Code.UNKNOWN_TYPE


@pytest.mark.parametrize("field", ["ttl_ms", "ctx", "event"])
def test_null_is_left_out(field: str) -> None:
    for encoding in Encoding:
        assert codec.decode_event(codec.encode({**EVENT, field: None}, encoding)) == (
            msgspec.convert(EVENT, Event),
            encoding,
        )


def test_null_does_not_hide_another_fault() -> None:
    with pytest.raises(ProtocolError, match=r"^src: Expected"):
        codec.decode_event(codec.encode({**EVENT, "ctx": None, "src": "a b"}, Encoding.JSON))
    with pytest.raises(ProtocolError, match=r"^query: it is required"):
        codec.convert({"query": None, "limit": None}, SearchParams)


@pytest.mark.parametrize(
    ("change", "sender"),
    [
        ({}, ("gw-1", "e1", 1)),
        ({"id": 5}, ("gw-1", None, 1)),
        ({"id": "i" * 129}, ("gw-1", None, 1)),
        ({"src": "a\0b"}, (None, "e1", 1)),
        ({"src": "a\n"}, (None, "e1", 1)),
        ({"src": "ctx/a"}, (None, "e1", 1)),
        ({"seq": 0}, ("gw-1", "e1", None)),
        ({"seq": "1"}, ("gw-1", "e1", None)),
        ({"src": None, "id": None, "seq": None}, (None, None, None)),
    ],
)
def test_a_sender_is_named_only_as_far_as_it_is_valid(
    change: dict[str, Any], sender: tuple[str | None, str | None, int | None]
) -> None:
    for encoding in Encoding:
        assert codec.sender_of(codec.encode({**EVENT, **change}, encoding)) == (*sender, encoding)


def test_a_sender_is_not_searched_in_what_is_too_large() -> None:
    data = codec.encode(EVENT, Encoding.JSON)[:-1] + b" " * MESSAGE_BYTES_MAX + b"}"
    assert codec.sender_of(data) == (None, None, None, Encoding.JSON)


@pytest.mark.parametrize("data", [b"", b" {}", b"hello", b"\x93\x01\x02\x03"])
def test_who_speaks_neither_encoding_is_answered_in_json(data: bytes) -> None:
    assert codec.sender_of(data) == (None, None, None, Encoding.JSON)
