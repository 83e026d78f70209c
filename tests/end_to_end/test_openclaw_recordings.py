"""Recorded sessions of real gateways, played to a real daemon: its turns are those that a person counts."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pytest

from recalld.edge.recordings import Recorded, read
from recalld.errors import FolderError
from recalld.replay import ReplayResult, replay
from recalld.wire.messages import QUESTION
from recalld_client import Client, sp

from .expected_turns import EXPECTED, Expected

Map = dict[str, Any]

SHARED = Path(__file__).parents[2].parent / "shared"
SAMPLES = Path(__file__).parents[1] / "demo"
VERSIONS = sorted(EXPECTED)
WINDOW = 5  # events overtake each other within so many
DUPLICATES = 0.2
SECONDS = 20.0


class Daemon(Protocol):
    """The fixture of the whole suite, as far as it is used here."""

    @property
    def data_dir(self) -> Path: ...
    @property
    def runtime_dir(self) -> Path: ...
    def stop(self) -> int: ...
    def start(self) -> object: ...


def recording(version: str) -> Path:
    path = SHARED / "data" / "openclaw" / f"{version}.events.jsonl"
    if not path.exists():
        missing = f"the recorded gateway sessions are not beside the repository ({path})"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return path


def play(daemon: Daemon, path: Path, speed: float = 0) -> ReplayResult:
    async def main() -> ReplayResult:
        result = await replay([path], runtime_dir=daemon.runtime_dir, speed=speed)
        await drain(daemon)
        return result

    return asyncio.run(main())


async def drain(daemon: Daemon) -> Map:
    """Close and store what is open; gives the status after it, which must be without a fault."""
    async with Client("test", daemon.runtime_dir, timeout_s=20) as client:
        await client.drain()
        status = await client.status()
    assert status["faults"] == []
    assert status["errors"] == {}
    assert status["open_turns"] == 0
    return status


def stored(daemon: Daemon) -> list[tuple[Expected, int]]:
    """Every turn on disk with its revision, as Expected, in the order of EXPECTED."""
    db = sqlite3.connect(f"file:{daemon.data_dir / 'recalld.db'}?mode=ro", uri=True)
    try:
        rows = db.execute(
            "SELECT t.session, json_group_array(r.run_id), t.user, t.assistant, t.status, t.outcome, t.reason, t.revision"
            " FROM turns t LEFT JOIN turn_runs r ON r.turn_id = t.id GROUP BY t.id"
        ).fetchall()
    finally:
        db.close()
    return [(Expected(s, frozenset(json.loads(runs)), *rest), revision) for s, runs, *rest, revision in rows]


def compare(found: list[tuple[Expected, int]], expected: list[Expected]) -> None:
    order = {turn.runs: number for number, turn in enumerate(expected)}
    turns = sorted((turn for turn, _ in found), key=lambda t: order.get(t.runs, len(order)))
    assert turns == expected


@pytest.mark.parametrize("speed", [0, 100])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_turns_are_those_a_person_counts(daemon: Daemon, version: str, speed: float) -> None:
    events = read(recording(version))
    result = play(daemon, recording(version), speed)
    assert result.lost == 0
    assert result.acknowledged == sum(e.type != QUESTION for e in events)
    assert result.events.total() == len(events)
    assert result.questions.total() == result.events[QUESTION]
    assert result.questions["unavailable"] == 0
    compare(stored(daemon), EXPECTED[version])


@pytest.mark.parametrize("version", VERSIONS)
def test_told_again_it_makes_revisions_and_no_turns(daemon: Daemon, version: str) -> None:
    play(daemon, recording(version))
    before = dict(stored(daemon))
    play(daemon, recording(version))
    after = stored(daemon)
    compare(after, EXPECTED[version])
    assert all(revision > before[turn] for turn, revision in after)


@pytest.mark.parametrize("version", VERSIONS)
def test_told_again_to_the_next_daemon_it_makes_no_turns_either(daemon: Daemon, version: str) -> None:
    play(daemon, recording(version))
    assert daemon.stop() == 0
    daemon.start()
    play(daemon, recording(version))
    compare(stored(daemon), EXPECTED[version])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("version", VERSIONS)
def test_order_and_repetition_do_not_change_the_turns(daemon: Daemon, version: str, seed: int) -> None:
    print(f"seed {seed}")
    choose = random.Random(seed)
    for _, life in groupby(read(recording(version)), key=lambda e: e.life):
        asyncio.run(publish_disordered(daemon, list(life), choose))
    status = asyncio.run(drain(daemon))
    assert status["ignored"]["duplicate"] > 0
    compare(stored(daemon), EXPECTED[version])


async def publish_disordered(daemon: Daemon, events: list[Recorded], choose: random.Random) -> None:
    """One publisher's life on sockets of its own: `seq` as it was, arrival not. Returns when all is on disk.

    Lives are not mixed: a gateway is dead before the next one starts.
    """
    src = f"disorder-{uuid4().hex[:8]}"
    seqs = iter(range(1, len(events) + 1))
    messages: list[Map] = [
        {"v": 1, "type": e.type, "id": uuid4().hex, "src": src, "ts": e.ts, "ctx": e.ctx, "event": e.event}
        | ({} if e.type == QUESTION else {"seq": next(seqs)})
        for e in events
    ]
    last = max(m.get("seq", 0) for m in messages)
    async with (
        asyncio.timeout(SECONDS),
        aclosing(await sp.dial(daemon.runtime_dir / "context.ipc", sp.Protocol.SUB)) as context,
        aclosing(await sp.dial(daemon.runtime_dir / "events.ipc", sp.Protocol.PUB)) as published,
    ):
        hello = {"v": 1, "type": "hello", "id": "hello", "src": src, "ts": 0}
        welcome = asyncio.create_task(answer(context, src))
        while not welcome.done():  # the first message on a new connection can be lost
            published.write(json.dumps(hello).encode())
            await asyncio.wait({welcome}, timeout=0.1)
        for message in disordered(messages, choose):
            published.write(json.dumps(message).encode())
        await published.drain()
        while (await answer(context, src)).get("upto", 0) < last:
            pass


async def answer(context: sp.Pipe, src: str) -> Map:
    while True:
        topic, _, payload = (await context.read()).partition(b"\0")
        if topic == f"ctx/{src}".encode():
            found: Map = json.loads(payload)
            return found


def disordered(messages: list[Map], choose: random.Random) -> Iterator[Map]:
    for start in range(0, len(messages), WINDOW):
        window = messages[start : start + WINDOW]
        window += [m for m in window if choose.random() < DUPLICATES]
        choose.shuffle(window)
        yield from window


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "line 1"),
        ("no recording at all", "line 1"),
        ('{"t": 1, "hook": "agent_end"}\n\n{"t": 2', "line 3"),
        ('{"t": 1, "hook": "agent_end"}\n{"t": 2}', "line 2: Object missing required field `hook`"),
        ('{\n "id": "a",\n "user" "b"\n}', "line 3"),
        ('{\n "id": "a",\n "user": 1\n}', "$.user"),
        (
            '{"id": "a", "user": "u", "assistant": "b", "sessions": [{"session_id": "s", "turns": [], "started_at": "x"}]}',
            "$.sessions[0].started_at",
        ),
    ],
)
def test_what_is_no_recording_is_refused_with_its_place(tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text(text)
    with pytest.raises(FolderError) as refused:
        read(path)
    assert str(path) in str(refused.value)
    assert place in str(refused.value)


def test_lives_provenance_and_another_agent() -> None:
    events = read(SAMPLES / "sample_recording.jsonl", "bob")
    lives = [[e.ctx.get("run_id") for e in life] for _, life in groupby(events, key=lambda e: e.life)]
    assert [sorted({run for run in life if run}) for life in lives] == [
        ["announce-5", "run-1", "run-2", "run-3", "run-4", "run-5", "run-6"],
        ["run-7"],  # the gateway's next life
        ["run-8"],  # a one-shot run after its stop
    ]
    assert {e.ctx.get("provenance") for e in events if e.ctx.get("run_id") == "announce-5"} == {"inter_session"}
    assert {e.ctx["session_key"].split(":")[1] for e in events if "session_key" in e.ctx} == {"bob"}
    assert not any(e.type == "before_agent_start" for e in events)


def test_the_command(daemon: Daemon) -> None:
    command = [sys.executable, "-m", "recalld", "replay", "--runtime-dir", str(daemon.runtime_dir), "--speed", "0"]
    files = [str(SAMPLES / "sample_recording.jsonl"), str(SAMPLES / "sample_conversation.json")]
    done = subprocess.run([*command, "--json", *files], capture_output=True, text=True, timeout=SECONDS, check=True)
    result = json.loads(done.stdout)
    assert (result["files"], result["lives"], result["lost"], done.stderr) == (2, 4, 0, "")
    assert sum(result["events"].values()) == result["acknowledged"] + result["events"][QUESTION]
    status = asyncio.run(drain(daemon))
    assert status["agents"]["main"]["seen"] == 8
    assert status["agents"]["sample-garden"]["captured"] == 15
    daemon.stop()
    alone = subprocess.run([*command, *files], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert alone.returncode == 7
    assert "start it with" in alone.stderr
