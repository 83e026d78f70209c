"""What a session was given, over the bus: not again, until the host says that the model forgot it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon_process import DaemonProcess
from end_to_end.test_bus import CTX, Bus, call, rpc


@pytest.fixture
def daemon(short_folder: Path) -> Iterator[DaemonProcess]:
    settings = {"recall__block": "memory-context", "recall__placement": "append", "recall__cold_start": "hint"}
    with DaemonProcess(short_folder, index__commit_ms="20", **settings) as process:
        yield process


@pytest.fixture
def bus(daemon: DaemonProcess) -> Iterator[Bus]:
    bus = Bus(daemon)
    yield bus
    bus.close()


def ask(bus: Bus, run_id: str, prompt: str = "Where is my boat moored?", **ctx: str) -> dict[str, Any]:
    ctx = {**CTX, "run_id": run_id, **ctx}
    bus.send(bus.envelope("before_prompt_build", kept=False, ttl_ms=5_000, ctx=ctx, event={"prompt": prompt}))
    return bus.receive("context")


def tell(daemon: DaemonProcess, text: str) -> None:
    stored = call(rpc(daemon), {"v": 1, "id": "s", "op": "store", "ctx": CTX, "params": {"text": text}})
    assert stored["ok"]
    call(rpc(daemon), {"v": 1, "id": "d", "op": "drain", "ctx": CTX})


def test_given_once_until_the_context_is_compacted_or_reset(daemon: DaemonProcess, bus: Bus) -> None:
    tell(daemon, "My boat is moored in Hoorn.")
    first = ask(bus, "r1")
    assert "Hoorn" in first["text"]
    assert first["text"].startswith("<memory-context>")
    assert first["placement"] == "append"
    assert ask(bus, "r1")["text"] == first["text"]  # the hook fired twice
    again = ask(bus, "r2")
    assert (again["status"], again["reason"]) == ("empty", "given")
    known = 2
    for signal in ("after_compaction", "before_compaction", "before_reset", "session_end", "session_start"):
        bus.send(bus.envelope(signal, ctx=CTX))
        known += 1
        assert ask(bus, f"r{known}")["text"] == first["text"], signal
        known += 1
        assert ask(bus, f"r{known}")["status"] == "empty", signal
    assert ask(bus, "r2", session_key="agent:main:another")["text"] == first["text"]


def test_a_first_prompt_is_told_that_there_are_memories(daemon: DaemonProcess, bus: Bus) -> None:
    assert ask(bus, "r0", "Explain quantum chromodynamics.", agent_id="x", session_key="chat")["status"] == "empty"
    tell(daemon, "My boat is moored in Hoorn.")
    answer = ask(bus, "r1", "Explain quantum chromodynamics.")
    assert (answer["status"], answer["reason"]) == ("ok", "cold_start")
    assert "memory_search" in answer["text"]
    assert "memories" not in answer
    assert ask(bus, "r2", "Explain quantum chromodynamics.")["status"] == "empty"
