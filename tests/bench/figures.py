"""Figures as JSON lines: one object for each, on standard output."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np


def emit(
    bench: str,
    figure: str,
    value: float | str,
    unit: str,
    *,
    target: str | None = None,
    floor: float | None = None,
    **detail: Any,
) -> None:
    """One line. `target` is a bound such as `<= 4`; `floor` is what the machine gave beside it, in the same unit."""
    shown = value if isinstance(value, str) else round(value, 3)
    line = {"bench": bench, "figure": figure, "value": shown, "unit": unit, "target": target}
    print(json.dumps({**line, "floor": None if floor is None else round(floor, 3), **detail}), flush=True)


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Percentiles, maximum and count. A percentile beyond what the count can tell is the maximum."""
    p50, p90, p99, p99_9 = np.percentile(np.array(values), (50, 90, 99, 99.9))
    rounded = {name: round(float(v), 3) for name, v in (("p50", p50), ("p90", p90), ("p99", p99), ("p99_9", p99_9))}
    return {**rounded, "max": round(max(values), 3), "n": len(values)}


def spread(repeats: Sequence[float]) -> list[float]:
    """Lowest and highest of the repeats."""
    return [round(min(repeats), 3), round(max(repeats), 3)]


def middle(repeats: Sequence[float]) -> float:
    return float(statistics.median(repeats))
