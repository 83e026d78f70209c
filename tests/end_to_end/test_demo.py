"""The demo runs as its user would run it, with the sample that is shipped."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[1] / "demo" / "demo.py"
LINES = (
    "Playing the invented sample in tests/demo (asked for).",
    "104 events of 2 files from 4 publishers in",
    "93 acknowledged, 0 lost",
    "Which fruit am I allergic to?",
    "I am allergic to strawberries, so none of those.",
    "late answers 0",
    "all is well: nothing lost, nothing late, every turn accounted for",
)
COUNTS = (  # memories: as many as are drawn; turns: seen = captured + skipped
    r"main \d+ 8 6 2 1 provenance, 1 subagent",
    r"sample-garden \d+ 27 15 12 12 prompt_only",
)


def test_the_sample_is_played_and_all_is_well() -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO), "--sample"], capture_output=True, text=True, timeout=50, check=False
    )
    shown = " ".join(done.stdout.split())
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert [line for line in LINES if line not in shown] == []
    assert [pattern for pattern in COUNTS if not re.search(pattern, shown)] == []
    assert not any(line != line.rstrip() for line in done.stdout.splitlines())
