"""The benchmarks of recalld: a daemon in a process of its own, the Python client, the real bus. Figures as JSON lines.

Usage: bench.py [--only NAME] [--memories N] [--questions N] [--events N] [--repeats N] [--starts N] [--notes N]

The figure of `memory` is taken at the end of `recall`. Every figure has beside it what its floor gave in the same run;
the first line says what the machine was doing.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import sys
import time
from importlib.metadata import version
from pathlib import Path

import uvloop

# the tests are no installed package: they are found from their folder
sys.path[0] = str(Path(__file__).parents[1])

from bench.attacks import attacks  # noqa: E402
from bench.figures import emit, spread, summary  # noqa: E402
from bench.ingest import ingest, start  # noqa: E402
from bench.recall import Sizes, findable, recall  # noqa: E402

BENCHES = {"recall": recall, "ingest": ingest, "start": start, "findable": findable}
BY_NAME = {**BENCHES, "attacks": attacks}  # an hour and ten gigabytes: only where it is asked for
PACKAGES = ("recalld", "pynng", "tantivy", "usearch", "wordllama", "numpy", "uvloop", "msgspec")
CALIBRATIONS = 20
CALIBRATION_STEPS = 200_000


def calibrate() -> float:
    """Milliseconds of a fixed piece of work: what it varies by is the machine's doing."""
    started = time.perf_counter()
    total = 0
    for i in range(CALIBRATION_STEPS):
        total += i * i
    return (time.perf_counter() - started) * 1000


def tell_machine() -> None:
    values = [calibrate() for _ in range(CALIBRATIONS)]
    emit(
        "machine",
        "calibration loop",
        summary(values)["p50"],
        "ms",
        spread=spread(values),
        n=len(values),
        cores=os.cpu_count(),
        load=list(os.getloadavg()),
        machine=platform.platform(),
        python=platform.python_version(),
        sqlite=sqlite3.sqlite_version,
        versions={package: version(package) for package in PACKAGES},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="The benchmarks of recalld.")
    parser.add_argument("--only", choices=sorted(BY_NAME))
    parser.add_argument("--memories", type=int, default=100_000)
    parser.add_argument("--questions", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=30_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--notes", type=int, default=20, help="in each repeat of `findable`")
    parser.add_argument("--attacked", type=int, default=6_000, help="questions during each attack")
    given = parser.parse_args()
    sizes = Sizes(
        given.memories, given.questions, given.events, given.repeats, given.starts, given.notes, given.attacked
    )
    tell_machine()
    for bench in [BY_NAME[given.only]] if given.only else BENCHES.values():
        uvloop.run(bench(sizes))  # as the daemon does, and as a gateway that minds its latency would


if __name__ == "__main__":
    main()
