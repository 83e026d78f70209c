"""`protocol/vectors/frames.json` against the library that speaks SP for the daemon: plain sockets on one side, it on
the other. What the vectors say is then what is on the wire."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pynng
import pytest

FRAMES = json.loads((Path(__file__).parents[2] / "protocol" / "vectors" / "frames.json").read_text(encoding="utf-8"))
SOCKETS = {"sub": pynng.Sub0, "pub": pynng.Pub0, "rep": pynng.Rep0, "req": pynng.Req0}
HANDSHAKES = {case["endpoint"]: case for case in FRAMES["handshakes"]}
FRAME_BYTES_MAX = 16 * 2**20


def cases(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", FRAMES[name], ids=lambda case: case["name"])


@contextmanager
def dialled(protocol: str, over: str, folder: Path) -> Iterator[tuple[Any, socket.socket]]:
    """A listening socket of the library, and a plain socket that is connected to it. No byte was sent yet."""
    with SOCKETS[protocol](recv_timeout=2000, send_timeout=2000, recv_max_size=FRAME_BYTES_MAX) as nng:
        if over == "ipc":
            nng.listen(f"ipc://{folder}/s")
            raw = socket.socket(socket.AF_UNIX)
            raw.settimeout(2)
            raw.connect(f"{folder}/s")
        else:
            listener = nng.listen("tcp://127.0.0.1:0")
            port = socket.ntohs(listener.local_address.port)  # the library leaves it in network order
            raw = socket.create_connection(("127.0.0.1", port), timeout=2)
        with raw:
            yield nng, raw


def read(raw: socket.socket, count: int) -> bytes:
    """As many bytes, or those that came before the other side closed."""
    data = b""
    with suppress(ConnectionResetError):  # closed with bytes of ours unread
        while len(data) < count and (part := raw.recv(count - len(data))):
            data += part
    return data


def receive(nng: Any) -> bytes:
    body: bytes = nng.recv_msg().bytes  # the library's blocking `recv` fails on an empty message
    return body


def shake(raw: socket.socket, endpoint: str) -> None:
    case = HANDSHAKES[endpoint]
    raw.sendall(bytes.fromhex(case["client_sends"]))
    assert read(raw, 8).hex() == case["daemon_sends"]


def framed(body: bytes, over: str) -> bytes:
    return (b"\x01" if over == "ipc" else b"") + len(body).to_bytes(8, "big") + body


def unframed(data: bytes, over: str) -> tuple[list[bytes], bytes]:
    """The bodies of all whole frames, and the bytes behind them."""
    start, bodies = 9 if over == "ipc" else 8, []
    while len(data) >= start and len(data) >= (end := start + int.from_bytes(data[start - 8 : start], "big")):
        bodies.append(data[start:end])
        data = data[end:]
    return bodies, data


@pytest.mark.parametrize("over", ["ipc", "tcp"])
@cases("handshakes")
def test_handshake(case: dict[str, str], over: str, tmp_path: Path) -> None:
    with dialled(case["daemon"], over, tmp_path) as (_, raw):
        shake(raw, case["endpoint"])


@cases("handshakes_refused")
def test_a_wrong_handshake_closes_the_connection(case: dict[str, str], tmp_path: Path) -> None:
    """The library dials as the client here, and is told what the client is told."""
    with socket.socket(socket.AF_UNIX) as listener, SOCKETS[case["client"]]() as nng:
        listener.bind(f"{tmp_path}/s")
        listener.listen()
        listener.settimeout(2)
        nng.dial(f"ipc://{tmp_path}/s", block=False)
        raw, _ = listener.accept()
        with raw:
            raw.settimeout(2)
            sent = next(known["client_sends"] for known in FRAMES["handshakes"] if known["client"] == case["client"])
            assert read(raw, 8).hex() == sent
            raw.sendall(bytes.fromhex(case["daemon_sends"]))
            raw.shutdown(socket.SHUT_WR)
            assert read(raw, 1) == b""


@cases("frames")
def test_frame(case: dict[str, str], tmp_path: Path) -> None:
    body = bytes.fromhex(case["body"])
    assert framed(body, case["over"]).hex() == case["hex"]
    with dialled("sub", case["over"], tmp_path) as (nng, raw):
        nng.subscribe(b"")
        shake(raw, "events")
        raw.sendall(bytes.fromhex(case["hex"]))
        assert receive(nng) == body


@cases("streams")
def test_stream(case: dict[str, Any], tmp_path: Path) -> None:
    data = bytes.fromhex(case["hex"])
    bodies, rest = unframed(data, case["over"])
    assert ([body.hex() for body in bodies], rest.hex()) == (case["bodies"], case["rest"])
    with dialled("sub", case["over"], tmp_path) as (nng, raw):
        nng.subscribe(b"")
        shake(raw, "events")
        raw.sendall(data)
        assert [receive(nng) for _ in bodies] == bodies


@cases("frames_refused")
def test_a_wrong_frame_closes_the_connection(case: dict[str, str], tmp_path: Path) -> None:
    with dialled("sub", case["over"], tmp_path) as (_, raw):
        shake(raw, "events")
        raw.sendall(bytes.fromhex(case["hex"]))
        assert read(raw, 1) == b""


@pytest.mark.parametrize("over", ["ipc", "tcp"])
@cases("requests")
def test_request(case: dict[str, str], over: str, tmp_path: Path) -> None:
    body, payload = bytes.fromhex(case["body"]), bytes.fromhex(case["payload"])
    assert body.hex() == case["request_id"] + case["payload"]
    with dialled("rep", over, tmp_path) as (nng, raw):
        shake(raw, "rpc")
        raw.sendall(framed(body, over))
        assert receive(nng) == payload
        nng.send(b"reply")
        reply = framed(body[:4] + b"reply", over)
        assert read(raw, len(reply)) == reply


@cases("requests_dropped")
def test_a_request_without_an_id_is_dropped(case: dict[str, str], tmp_path: Path) -> None:
    with dialled("rep", "ipc", tmp_path) as (nng, raw):
        shake(raw, "rpc")
        raw.sendall(framed(bytes.fromhex(case["body"]), "ipc"))
        nng.recv_timeout = 100
        with pytest.raises(pynng.Timeout):
            nng.recv()


@cases("publications")
def test_publication(case: dict[str, Any], tmp_path: Path) -> None:
    """A SUB that filters for itself: the library sends everything, and the topic rule of the text picks ours."""
    body = bytes.fromhex(case["body"])
    topic = f"ctx/{case['src']}".encode()
    assert body.startswith(topic + b"\0") == case["keep"]
    if case["keep"]:
        assert body.partition(b"\0") == (case["topic"].encode(), b"\0", bytes.fromhex(case["payload"]))
    with dialled("pub", "ipc", tmp_path) as (nng, raw):
        shake(raw, "context")
        while not nng.pipes:  # the pipe opens a moment after the last byte of the handshake
            time.sleep(0.001)
        nng.send(body)
        assert read(raw, 9 + len(body)) == framed(body, "ipc")
