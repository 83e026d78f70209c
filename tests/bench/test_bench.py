"""The benchmarks run from end to end, at a size that says nothing about speed, and print every figure."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SMALL = ("--memories", "300", "--questions", "50", "--events", "300", "--repeats", "1", "--starts", "1", "--notes", "2")
FLOORS = ("embedding", "vector search", "lexical search", "fetch", "bus echo", "socket echo")
RECALL = ("p50", "p99", "in the daemon", "late answers", "timeouts", "captures beside it")
FIGURES = {
    ("machine", "calibration loop"),
    *((f"recall-{n}", figure) for n in (300, 30) for figure in (*RECALL, *(f"floor: {floor}" for floor in FLOORS))),
    *(("seed", n) for n in ("300", "30")),
    ("memory", "300 memories, after recall"),
    ("ingest", "floor: group commits"),
    ("ingest", "floor: bus"),
    ("ingest", "acknowledged on disk"),
    ("ingest", "last acknowledgement to all findable"),
    ("start", "floor: imports and weights"),
    ("start", "ready"),
    ("findable", "as it was said"),
    ("findable", "by two rare words"),
}


@pytest.mark.timeout(180)  # for a machine that does other things; by itself it takes 20 s
def test_every_figure_is_printed() -> None:
    command = [sys.executable, str(Path(__file__).parent / "bench.py"), *SMALL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(line["bench"], line["figure"]) for line in lines} == FIGURES
    assert len(lines) == len(FIGURES)
    for line in lines:
        assert {"value", "unit", "target", "floor"} <= line.keys()
        assert line["value"] >= 0
    by_name = {(line["bench"], line["figure"]): line for line in lines}
    for name in ("recall-300", "recall-30"):
        asked = by_name[name, "timeouts"]
        assert sum(asked["statuses"].values()) == asked["n"] == 50
        assert by_name[name, "captures beside it"]["lost"] == 0
        assert {"p50", "p90", "p99", "p99_9", "max", "n", "spread"} <= by_name[name, "p50"].keys()
    assert by_name["ingest", "acknowledged on disk"]["lost"] == 0
    assert by_name["ingest", "last acknowledgement to all findable"]["unstored"] == 0
