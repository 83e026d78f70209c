"""Every vector through the codec, and a count that nothing in the protocol is without one."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest

from recalld.wire import codec
from recalld.wire.codec import Encoding
from recalld.wire.errors import REMEDY, Code, ProtocolError
from recalld.wire.messages import (
    ANSWERS,
    EVENT_TYPES,
    KEPT_TYPES,
    Context,
    Error,
    Event,
    Reply,
    Request,
    Status,
)
from recalld.wire.operations import OPERATIONS, SCHEMAS

Cases = dict[str, list[dict[str, Any]]]

BY_THE_CODEC = {Code.MALFORMED, Code.TOO_LARGE, Code.VERSION, Code.ENVELOPE, Code.UNKNOWN_TYPE}


def plain(data: bytes) -> Any:
    return json.loads(data) if codec.encoding_of(data) is Encoding.JSON else msgspec.msgpack.decode(data)


def decode(data: bytes, kind: str) -> tuple[Any, Encoding]:
    if kind == "event":
        return codec.decode_event(data)
    if kind == "request":
        return codec.decode_request(data)
    return codec.convert(plain(data), SCHEMAS[kind]), codec.encoding_of(data)


def covers(found: Any, expected: Any) -> bool:
    """Is all that is expected there, as `protocol/vectors/README.md` says it for a client without types?"""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(
            key in found and covers(found[key], value) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(covers, found, expected))
    return bool(found == expected) and isinstance(found, bool) == isinstance(expected, bool)


def test_valid(valid_case: dict[str, Any]) -> None:
    kind, expect = valid_case["kind"], valid_case["expect"]
    for data in valid_case["forms"]:
        decoded, encoding = decode(data, kind)
        assert decoded == msgspec.convert(expect, SCHEMAS[kind])
        assert covers(plain(data), expect)
        for other in Encoding:
            again, found = decode(codec.encode(decoded, other), kind)
            assert (again, found) == (decoded, other)
        if kind in ("event", "request"):
            assert (
                codec.sender_of(data)
                == (
                    getattr(decoded, "src", None),
                    decoded.id,
                    getattr(decoded, "seq", None),
                    encoding,
                )
                or len(data) > 2**20
            )


def test_both_forms_are_one_object(valid_case: dict[str, Any]) -> None:
    if "json" in valid_case and "hex" in valid_case:
        text, packed = valid_case["forms"]
        assert (codec.encoding_of(text), codec.encoding_of(packed)) == (Encoding.JSON, Encoding.MSGPACK)
        assert plain(text) == plain(packed)


def test_invalid(invalid_case: dict[str, Any]) -> None:
    expect = invalid_case["expect"]
    for data in invalid_case["forms"]:
        with pytest.raises(ProtocolError) as caught:
            decode(data, invalid_case["kind"])
        assert caught.value.code == expect["code"] == invalid_case["file"]
        if field := expect.get("field"):
            assert caught.value.message.startswith(f"{field}: ")
        if expect["code"] == Code.UNKNOWN_TYPE:
            assert isinstance(caught.value, codec.UnknownType)
            assert caught.value.event.type == plain(data)["type"]
        assert len(caught.value.message) < 512, "an error must not echo its message"


def test_exchange(exchange: dict[str, Any]) -> None:
    """What the daemon receives, and what it answers. Where the codec refuses, the answer says what the codec said."""
    code = Code(exchange["expect"]["code"])
    assert code == exchange["file"]
    (sent,) = exchange["forms"]
    rpc = exchange["endpoint"] == "rpc"
    answer: Any = json.loads(exchange["receive"])
    kind: type[msgspec.Struct] = Reply if rpc else ANSWERS[answer["type"]]
    answer = msgspec.convert(answer, kind)
    found = answer.error if rpc else answer
    if isinstance(found, Context):
        assert (found.status, found.reason) == ("error", code)
    else:
        assert (found.code, found.remedy) == (code, REMEDY[code])

    if code not in BY_THE_CODEC:
        message, _ = decode(sent, "request" if rpc else "event")
        assert answer.re == message.id
        return
    with pytest.raises(ProtocolError) as caught:
        decode(sent, "request" if rpc else "event")
    src, id_, _, _ = codec.sender_of(sent)
    assert (caught.value.code, caught.value.message, id_) == (code, found.message, answer.re)
    assert rpc or answer.src == src


def test_names_are_unique(valid: Cases, invalid: Cases) -> None:
    for cases in [*valid.values(), *invalid.values()]:
        names = [(case["kind"], case["name"]) for case in cases]
        assert len(names) == len(set(names))
    assert all(case["forms"] and "expect" in case for cases in [*valid.values(), *invalid.values()] for case in cases)


def test_every_message_has_a_valid_vector_in_both_encodings(valid: Cases) -> None:
    assert set(valid) == set(SCHEMAS)
    for kind, cases in valid.items():
        assert all(case["kind"] == kind for case in cases)
        assert any("json" in case and "hex" in case for case in cases), kind


def test_every_event_type_has_a_valid_vector_in_both_encodings(valid: Cases) -> None:
    packed = {case["expect"]["type"] for case in valid["event"] if "json" in case and "hex" in case}
    assert packed == EVENT_TYPES


def test_every_operation_has_a_request_and_a_reply(valid: Cases) -> None:
    requests = {case["expect"]["op"]: case for case in valid["request"] if "params" in case["expect"]}
    assert {case["expect"]["op"] for case in valid["request"]} == set(OPERATIONS)
    for op, case in requests.items():
        codec.convert(case["expect"]["params"], OPERATIONS[op][0])
    replies = {case["name"]: case["expect"] for case in valid["reply"] if case["expect"]["ok"]}
    assert set(replies) == set(OPERATIONS)
    for op, reply in replies.items():
        codec.convert(reply["result"], OPERATIONS[op][1])


def test_every_status_of_a_context_has_a_vector(valid: Cases) -> None:
    for kind in ("context", "recall.result"):
        assert {case["expect"]["status"] for case in valid[kind]} == set(get_args(Status))


def test_every_error_code_has_a_vector_and_an_answer(invalid: Cases) -> None:
    assert set(invalid) == set(Code)
    for code, cases in invalid.items():
        assert any(case["kind"] == "exchange" for case in cases), code
    for code in BY_THE_CODEC - {Code.UNKNOWN_TYPE}:
        assert {case["kind"] for case in invalid[code]} == {"event", "request", "exchange"}


def test_every_field_with_a_bound_has_an_invalid_vector(invalid: Cases) -> None:
    for kind, struct in (("event", Event), ("request", Request)):
        fields = {case["expect"].get("field") for case in invalid[Code.ENVELOPE] if case["kind"] == kind}
        assert {name for name in struct.__struct_fields__ if name != "v"} <= fields
    for op, (params, _) in OPERATIONS.items():
        fields = {case["expect"].get("field") for case in invalid[Code.PARAMS] if case["kind"] == f"{op}.params"}
        assert set(params.__struct_fields__) <= fields


def test_every_kept_type_is_refused_without_its_seq(invalid: Cases) -> None:
    refused = {plain(case["forms"][0]).get("type") for case in invalid[Code.ENVELOPE] if "without seq" in case["name"]}
    assert refused == KEPT_TYPES


def test_an_error_on_the_bus_carries_the_code_of_the_reply() -> None:
    """The two shapes of an error share their fields."""
    shared = {"code", "message", "remedy", "supported"}
    assert shared <= set(Error.__struct_fields__)
