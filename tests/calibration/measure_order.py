"""How far recency may move memories: what recall loses when every answer is two years old and all else is of today.

The conversations go through a daemon as gateway events; each question is searched, and the ranked list is ordered anew
for each width of the band. `aged` is the worst case for the answer: it has lost all that a durable memory loses in two
years, and nothing else has lost anything. `dated` takes the ages that the conversation has a day after its end. JSON
lines: the share of evidence turns among the first 5, and among the first 5 above the floor.

    PYTHONPATH=tests python tests/calibration/measure_order.py ../shared/data/conversations/*.json
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from daemon_process import DaemonProcess
from recalld.core.pack import RecallSettings
from recalld.core.policy import BAND, DAY_MS, recency
from recalld.replay import replay
from recalld_client import SyncClient

BANDS = (0.0, 0.02, 0.03, 0.05, 0.1, 0.2, 0.4)
AGE_MS = 730 * DAY_MS
FIRST = 5
LISTED = 60


def first_turns(memories: Iterable[dict[str, Any]]) -> list[set[str]]:
    """The run ids of the first FIRST turns of a list."""
    turns: dict[Any, set[str]] = {}
    for memory in memories:
        if len(turns) < FIRST:
            turns.setdefault(memory.get("turn_id", memory["id"]), set(memory.get("run_ids", ())))
    return list(turns.values())


def share(memories: Iterable[dict[str, Any]], evidence: set[str]) -> float:
    return len(evidence & set().union(*first_turns(memories))) / len(evidence)


def aged(memory: dict[str, Any], evidence: set[str], now_ms: int) -> int:
    return AGE_MS if evidence.intersection(memory.get("run_ids", ())) else 0


def dated(memory: dict[str, Any], evidence: set[str], now_ms: int) -> int:
    return now_ms - int(memory["created_ms"])


def main(paths: list[Path]) -> None:
    asked = [one for path in paths for one in answers(path)]
    floor = RecallSettings().floor
    for age in (aged, dated):
        for band in BANDS:
            ranked, injected = 0.0, 0.0
            for listed, evidence, now_ms in asked:
                worth = [m["score"] + recency("durable", age(m, evidence, now_ms)) * band / BAND for m in listed]
                order = [listed[i] for i in sorted(range(len(listed)), key=lambda i: -worth[i])]
                ranked += share(order, evidence)
                injected += share([m for m in order if m["score"] >= floor], evidence)
            line = {
                "ages": age.__name__,
                "band": band,
                "questions": len(asked),
                "recall_5": round(ranked / len(asked), 4),
                "injected": round(injected / len(asked), 4),
            }
            sys.stdout.write(json.dumps(line) + "\n")


def answers(path: Path) -> list[tuple[list[dict[str, Any]], set[str], int]]:
    """(ranked list, evidence, Unix ms a day after the conversation) of each question."""
    conversation = json.loads(path.read_text())
    ctx = {"agent_id": path.stem}
    found = []
    with tempfile.TemporaryDirectory(prefix="recalld-") as folder, DaemonProcess(Path(folder)) as daemon:
        asyncio.run(replay([path], runtime_dir=daemon.runtime_dir, speed=0, agent=path.stem))
        with SyncClient("measure", daemon.runtime_dir) as client:
            client.drain(timeout_s=300)
            for question in conversation["questions"]:
                listed = client.search(question["question"], ctx, LISTED, timeout_s=30)["memories"]
                found.append((listed, set(question["evidence"])))
    end_ms = max(memory["created_ms"] for listed, _ in found for memory in listed)
    return [(listed, evidence, end_ms + DAY_MS) for listed, evidence in found]


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
