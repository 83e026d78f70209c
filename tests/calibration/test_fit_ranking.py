"""The fit of the ranking runs from end to end; on a conversation so small its figures say nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from recalld.core.rank import WEIGHTS

SAMPLE = Path(__file__).parents[1] / "demo" / "sample_conversation.json"


def run(*paths: Path) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).parent / "fit_ranking.py"
    return subprocess.run([sys.executable, script, *paths], capture_output=True, text=True, check=False)


def parts_of_the_sample(folder: Path) -> list[Path]:
    """One conversation as three, each with the questions that it answers."""
    told = json.loads(SAMPLE.read_text())
    paths = []
    for number, sessions in enumerate((told["sessions"][:2], told["sessions"][2:4], told["sessions"][4:])):
        runs = {turn["run_id"] for session in sessions for turn in session["turns"]}
        questions = [q for q in told["questions"] if runs.issuperset(q["evidence"])]
        paths.append(folder / f"{number}.json")
        paths[-1].write_text(
            json.dumps({**told, "id": f"sample-{number}", "sessions": sessions, "questions": questions})
        )
    return paths


def test_every_part_has_a_weight_and_is_left_out_once(tmp_path: Path) -> None:
    done = run(*parts_of_the_sample(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ")[0].removeprefix("| ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert rows[: rows.index("part") + 9] == ["part", *WEIGHTS]
    assert [row.removeprefix("without ") for row in rows if row.startswith("without ")] == list(WEIGHTS)
    assert "nan" not in done.stdout


def test_two_files_are_not_enough(tmp_path: Path) -> None:
    done = run(*parts_of_the_sample(tmp_path)[:2])
    assert done.returncode == 1
    assert "three conversation files or more" in done.stderr
