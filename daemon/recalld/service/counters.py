"""What happened, counted. Increments are single operations on plain dicts, safe from the few threads there are."""

from __future__ import annotations

from collections import Counter, deque

import numpy as np

LATENCIES_KEPT = 10_000


class Counters:
    """Since the daemon's start."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()  # by type, once stored or answered
        self.ignored: Counter[str] = (
            Counter()
        )  # by reason: duplicate, unknown_scope, unknown_type, overload, foreign_uid
        self.errors: Counter[str] = Counter()  # by E_* code
        self.opened: Counter[str] = Counter()  # turns by agent
        self.finished: Counter[str] = Counter()  # turns by agent: stored with an outcome
        self.recalls: Counter[str] = Counter()  # by status, and status:reason
        self.late = 0
        self.cached = 0  # recalls answered with what was found a moment ago
        self.shared = 0  # recalls that shared the search of another
        self.unlogged = 0  # recalls that the log had no room for, or could not write
        self.latencies_ms: deque[float] = deque(maxlen=LATENCIES_KEPT)
        self.faults: dict[str, str] = {}  # what is wrong now, by the thing

    def recall(self, status: str, reason: str | None, elapsed_ms: float) -> None:
        self.recalls[status] += 1
        if reason:
            self.recalls[f"{status}:{reason}"] += 1
        if status != "skipped":
            self.latencies_ms.append(elapsed_ms)

    def latency(self) -> dict[str, float]:
        """p50, p90, p99 and max in ms of the last LATENCIES_KEPT answers that searched."""
        if not self.latencies_ms:
            return {}
        values = np.array(self.latencies_ms)
        p50, p90, p99 = np.percentile(values, (50, 90, 99))
        return {
            name: round(float(v), 2) for name, v in (("p50", p50), ("p90", p90), ("p99", p99), ("max", values.max()))
        }
