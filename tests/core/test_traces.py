"""The time-stamped traces of protocol/traces: each `in` at its time, each `out` at exactly its time, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from recalld.core.scope import scope_of
from recalld.core.signals import KINDS, distil
from recalld.core.turn import TurnSettings
from recalld.core.turns import TurnBook
from recalld.wire.messages import Event

TRACES = sorted((Path(__file__).parents[2] / "protocol" / "traces").glob("*.json"))
CLOSED_BY = {
    "quiet", "grace", "next_start", "session_end", "before_reset", "before_compaction", "gateway_stop", "drain", "idle",
}  # fmt: skip


def load(path: Path) -> dict[str, Any]:
    trace: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    return trace


def outs(book: TurnBook, at: int) -> list[tuple[int, dict[str, Any]]]:
    found = []
    while (turn := book.next_close()) is not None:
        out = {
            "session": turn.session,
            "run_ids": turn.runs,
            "user": turn.user,
            "assistant": turn.assistant,
            "status": turn.status,
            "closed_by": turn.closed_by,
            "revision": turn.revision,
        }
        assert turn.closed_ms <= at
        found.append((turn.closed_ms, out))
    return found


def replay(trace: dict[str, Any], step_ms: int | None = None) -> list[tuple[int, dict[str, Any]]]:
    """All outputs of a trace. With `step_ms` the machine is also woken that often between inputs, which changes nothing."""
    book = TurnBook(TurnSettings(**trace["settings"]))
    found: list[tuple[int, dict[str, Any]]] = []
    inputs = [s for s in trace["steps"] if "out" not in s]
    horizon = max(s["at"] for s in trace["steps"]) + 10_000_000
    now = 0
    for step in [*inputs, {"at": horizon}]:
        while step_ms and step["at"] < horizon and (now := now + step_ms) < step["at"]:
            book.handle_timer(now)
            found += outs(book, now)
        now = step["at"]
        book.handle_timer(now)
        if step.get("drain"):
            book.close_all("drain", now)
        elif "in" in step:
            event = msgspec.convert({"v": 1, "id": "x", "ts": now, **step["in"]}, Event)
            signal = distil(event, scope_of(event.ctx, {}), now)
            if signal is not None:
                book.receive(signal, now)
        found += outs(book, now)
    assert book.open_turns == 0
    return found


@pytest.mark.parametrize("path", TRACES, ids=lambda p: p.stem)
@pytest.mark.parametrize("step_ms", [None, 7, 1_000])
def test_trace(path: Path, step_ms: int | None) -> None:
    trace = load(path)
    expected = [(s["at"], s["out"]) for s in trace["steps"] if "out" in s]
    assert replay(trace, step_ms) == expected


def test_the_traces_show_every_signal_and_every_way_to_close() -> None:
    traces = [load(path) for path in TRACES]
    assert {s["in"]["type"] for t in traces for s in t["steps"] if "in" in s} >= set(KINDS)
    assert {s["out"]["closed_by"] for t in traces for s in t["steps"] if "out" in s} == CLOSED_BY
    text = (Path(__file__).parents[2] / "protocol" / "README.md").read_text()
    for name in CLOSED_BY:
        assert f"`{name}`" in text.split("## 11.")[1]
