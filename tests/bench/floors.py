"""What the machine and the parts give by themselves, measured beside the whole.

Run by itself, it is the other process of an echo or of a stream: floors.py KIND FOLDER [BYTES]
"""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynng

WARM_UP = 50
STREAM_WINDOW = 4_096  # messages under way, half a socket's queue: nothing is dropped
STREAM_REPORT = 256  # messages between two reports of the receiver
STREAM_END = b"end"
COMMIT_EVENTS = 256  # what the daemon takes from its socket in one turn of its loop


def timed(work: Callable[[Any], object], items: Sequence[Any]) -> list[float]:
    """Milliseconds of each call, after a few that do not count."""
    for item in items[:WARM_UP]:
        work(item)
    values = []
    for item in items:
        started = time.perf_counter()
        work(item)
        values.append((time.perf_counter() - started) * 1000)
    return values


def socket_echo(folder: Path, count: int, question_bytes: int, answer_bytes: int) -> list[float]:
    """Milliseconds from question to answer over a Unix socket, blocking, two processes."""
    with _other("socket", folder, answer_bytes), socket.socket(socket.AF_UNIX) as s:
        s.connect(str(folder / "echo"))
        question = bytes(question_bytes)

        def ask(_: int) -> None:
            s.sendall(question_bytes.to_bytes(8, "big") + question)
            _read(s)

        return timed(ask, range(count))


def bus_echo(folder: Path, count: int, question_bytes: int, answer_bytes: int) -> list[float]:
    """Milliseconds from question to answer over PUB/SUB and back over PUB/SUB, blocking, two processes."""
    with _other("bus", folder, answer_bytes), _bus(folder) as (events, answers):
        question = bytes(question_bytes)

        def ask(_: int) -> None:
            events.send(question)
            answers.recv()

        return timed(ask, range(count))


def bus_stream(folder: Path, count: int, message_bytes: int) -> float:
    """Messages per second through PUB/SUB into another process, with as many under way as its queue takes."""
    with _other("stream", folder, 0), _bus(folder) as (events, reports):
        message = bytes(message_bytes)
        received = 0
        started = time.perf_counter()
        for sent in range(count):
            while sent - received >= STREAM_WINDOW:
                received = int.from_bytes(reports.recv(), "big")
            events.send(message)
        events.send(STREAM_END)
        while received < count:
            received = int.from_bytes(reports.recv(), "big")
        return count / (time.perf_counter() - started)


def group_commits(folder: Path, count: int, row_bytes: int) -> float:
    """Rows per second into a journal like the daemon's, durable, COMMIT_EVENTS in a transaction."""
    db = sqlite3.connect(folder / "floor.db", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE journal (id INTEGER PRIMARY KEY, src TEXT, seq INTEGER, signal BLOB, UNIQUE (src, seq))")
    started = time.perf_counter()
    for first in range(0, count, COMMIT_EVENTS):
        rows = [("floor-1", seq, os.urandom(row_bytes)) for seq in range(first, min(first + COMMIT_EVENTS, count))]
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO journal (src, seq, signal) VALUES (?, ?, ?)", rows)
        db.execute("COMMIT")
    seconds = time.perf_counter() - started
    db.close()
    return count / seconds


def bare_start() -> float:
    """Seconds to start an interpreter, import the daemon, and load the embedding's weights."""
    started = time.perf_counter()
    code = "import recalld.service.app; from recalld.edge.embed import StaticEmbedder; StaticEmbedder()"
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - started


@contextmanager
def _other(kind: str, folder: Path, answer_bytes: int) -> Iterator[None]:
    command = [sys.executable, __file__, kind, str(folder), str(answer_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.kill()


@contextmanager
def _bus(folder: Path) -> Iterator[tuple[Any, Any]]:
    """Dialled as a client does: first what it hears, then what it says."""
    with pynng.Sub0(topics=b"", recv_timeout=10_000) as answers, pynng.Pub0(send_buffer_size=8_192) as events:
        answers.dial(f"ipc://{folder}/answers", block=True)
        events.dial(f"ipc://{folder}/events", block=True)
        time.sleep(0.2)  # PUB and SUB know of each other a moment after they are connected
        yield events, answers


def _read(s: socket.socket) -> bytes:
    size = int.from_bytes(s.recv(8, socket.MSG_WAITALL), "big")
    return s.recv(size, socket.MSG_WAITALL)


def _answer_socket(folder: Path, answer: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "echo"))
        listener.listen()
        print("ready", flush=True)
        connection, _ = listener.accept()
        while _read(connection):
            connection.sendall(len(answer).to_bytes(8, "big") + answer)


def _answer_bus(folder: Path, answer: bytes | None) -> None:
    """Answer every message; or, without an answer, report how many there were."""
    with pynng.Sub0(topics=b"", recv_buffer_size=8_192) as events, pynng.Pub0() as answers:
        events.listen(f"ipc://{folder}/events")
        answers.listen(f"ipc://{folder}/answers")
        print("ready", flush=True)
        received = 0
        while True:
            if answer is not None:
                events.recv()
                answers.send(answer)
                continue
            ended = events.recv() == STREAM_END
            received += not ended
            if ended or received % STREAM_REPORT == 0:
                answers.send(received.to_bytes(8, "big"))


if __name__ == "__main__":
    bytes_ = bytes(int(sys.argv[3]))
    if sys.argv[1] == "socket":
        _answer_socket(Path(sys.argv[2]), bytes_)
    else:
        _answer_bus(Path(sys.argv[2]), bytes_ if sys.argv[1] == "bus" else None)
