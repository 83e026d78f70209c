"""The whole way, once: recorded gateway sessions and a long conversation in, memories, and answers to questions out.

`.venv/bin/python tests/demo/demo.py [--sample]` starts a daemon of its own in a temporary folder. Time is compressed by
configuration only. Exit code 1 if anything was not as it must be; the last lines say what.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from recalld.edge.recordings import Asked, Conversation, conversation
from recalld.replay import ReplayResult, replay
from recalld_client import Client, Recall

HERE = Path(__file__).resolve().parent
DATA = HERE.parents[1].parent / "shared" / "data"
START_SECONDS = 60.0
CALL_SECONDS = 60.0
SHOWN = 5
MARGIN_MS = (
    200  # a question is given up this long after its budget: this process may be the slow one, and not the daemon
)
SETTINGS = {
    "turns__quiet_ms": "200",
    "turns__grace_ms": "50",
    "turns__linger_ms": "2000",
    "index__commit_ms": "20",
    "notes__place": "data",
    "log_level": "warning",
}


@dataclass(frozen=True)
class Inputs:
    recordings: list[Path]
    conversation: Path
    source: str


@dataclass(frozen=True)
class Answered:
    asked: Asked
    recall: Recall
    round_trip_ms: float

    @property
    def found(self) -> set[str]:
        """The turns that answer the question and were injected for it."""
        return set(self.asked.evidence) & {run for m in self.recall.memories for run in m.get("run_ids", [])}


def inputs(sample: bool) -> Inputs:
    recordings = sorted((DATA / "openclaw").glob("*.events.jsonl"))
    told = DATA / "conversations" / "locomo-conv-26.json"
    if recordings and told.exists() and not sample:
        return Inputs(recordings, told, "recorded OpenClaw gateways, and a LoCoMo conversation of months (../shared)")
    why = "asked for" if sample else "the recorded data are not beside the repository"
    return Inputs(
        [HERE / "sample_recording.jsonl"],
        HERE / "sample_conversation.json",
        f"the invented sample in tests/demo ({why})",
    )


@contextmanager
def daemon(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`recalld run` in a folder of its own; stopped with SIGTERM."""
    config = folder / "recalld.toml"
    config.touch()  # instead of the one of the user who runs this
    settings = {"config": str(config), "data_dir": str(folder / "data"), "runtime_dir": str(folder / "run"), **SETTINGS}
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("RECALLD_", "NOTIFY_"))}
    environ |= {f"RECALLD_{key.upper()}": value for key, value in settings.items()}
    with (folder / "daemon.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "recalld", "run"], env=environ, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def ask_all(client: Client, told: Conversation) -> list[Answered]:
    """Each question as the prompt of a new session of the agent, with the default budget of 100 ms."""
    answered = []
    for number, asked in enumerate(told.questions, 1):
        ctx = {"agent_id": told.agent, "session_key": f"agent:{told.agent}:question-{number}", "sender_name": told.user}
        started = time.perf_counter()
        recall = await client.recall(asked.question, ctx)
        answered.append(Answered(asked, recall, (time.perf_counter() - started) * 1000))
    return answered


def spread(answered: Sequence[Answered]) -> list[tuple[int, Answered]]:
    """SHOWN of them, with their numbers, from the whole length of the list."""
    count = min(SHOWN, len(answered))
    return [
        (number + 1, answered[number]) for number in ((2 * i + 1) * len(answered) // (2 * count) for i in range(count))
    ]


def percentiles(values: Sequence[float]) -> str:
    ordered = sorted(values)
    picked = {name: ordered[min(len(ordered) - 1, int(len(ordered) * q))] for name, q in _QUANTILES}
    return ", ".join(f"{name} {value:.1f}" for name, value in picked.items()) + f", max {ordered[-1]:.1f} ms"


_QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


def faults_of(
    told: Conversation, result: ReplayResult, answered: Sequence[Answered], status: dict[str, Any]
) -> list[str]:
    """What is wrong, each in a sentence. None: all is well."""
    statuses = Counter(a.recall.status for a in answered)
    wrong = [f"fault: {fault}" for fault in status["faults"]]
    wrong += [f"error {code}: {count}" for code, count in status["errors"].items()]
    if result.lost:
        wrong.append(f"{result.lost} events were not acknowledged")
    if status["late"]:
        wrong.append(f"{status['late']} answers came after their deadline")
    silent = sum(result.questions[s] + statuses[s] for s in ("timeout", "unavailable"))
    if silent:
        wrong.append(f"{silent} questions were not answered")
    broken = {a.recall.reason for a in answered if a.recall.status == "error"} - {"E_DEADLINE"}
    wrong += [f"questions were answered with the error {reason}" for reason in broken]
    for agent, counts in status["agents"].items():
        if counts["seen"] != counts["captured"] + sum(counts["skipped"].values()):
            wrong.append(f"agent {agent}: {counts['seen']} turns seen are not captured + skipped: {counts}")
    said = sum(bool(turn.user or turn.assistant) for sitting in told.sessions for turn in sitting.turns)
    captured = status["agents"].get(told.agent, {}).get("captured", 0)
    if captured != said:
        wrong.append(f"{captured} turns of the conversation were captured, and {said} were said")
    if status["open_turns"]:
        wrong.append(f"{status['open_turns']} turns are still open after the drain")
    if not any(a.found for a in answered):
        wrong.append("no question was given a turn that answers it")
    return wrong


# -- what is shown


class Paper:
    """A console that leaves no blanks at the ends of lines where nobody sees their background."""

    def __init__(self) -> None:
        self._console = Console(width=None if sys.stdout.isatty() else 110, highlight=False, markup=False, emoji=False)

    def show(self, *things: RenderableType, indent: int = 0, style: str | None = None) -> None:
        with self._console.capture() as captured:
            for thing in things or ("",):
                self._console.print(Padding(thing, (0, 0, 0, indent)), style=style)
        text = captured.get()
        if not self._console.is_terminal:
            text = "".join(f"{line.rstrip()}\n" for line in text.split("\n")[:-1])
        sys.stdout.write(text)
        sys.stdout.flush()

    def chapter(self, title: str) -> None:
        self.show("", Rule(title, align="left"))


def show_played(paper: Paper, result: ReplayResult, seconds: float) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right")
    table.add_column()
    for name, count in result.events.most_common():
        table.add_row(str(count), name)
    paper.show(table, indent=2)
    paper.show(
        f"{result.events.total()} events of {result.files} files from {result.lives} publishers in {seconds:.1f} s:"
        f" {result.acknowledged} acknowledged, {result.lost} lost; the {result.questions.total()} questions among them"
        f" answered {listed(result.questions)}",
        indent=2,
    )


def show_question(paper: Paper, number: int, total: int, a: Answered) -> None:
    paper.show("", Text(f"[{number} of {total}] {a.asked.question}", "bold"))
    paper.show(
        f"{a.recall.status}, {a.round_trip_ms:.1f} ms, {a.recall.tokens} tokens; memories: {len(a.recall.memories)};"
        f" turns that answer it: {len(a.found)} of {len(a.asked.evidence)}",
        indent=2,
    )
    paper.show(Text(a.recall.text or "(nothing is put before this prompt)"), indent=4)


def show_counts(paper: Paper, status: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("agent", "memories", "turns seen", "= captured", "+ skipped"):
        table.add_column(name, justify="left" if name == "agent" else "right")
    table.add_column("for this reason")
    for agent, counts in status["agents"].items():
        skipped: dict[str, int] = counts["skipped"]
        numbers = (counts["memories"], counts["seen"], counts["captured"], sum(skipped.values()))
        table.add_row(agent, *map(str, numbers), listed(skipped))
    paper.show(table, indent=2)


def show_answers(paper: Paper, answered: Sequence[Answered], status: dict[str, Any]) -> None:
    found, evidence = sum(len(a.found) for a in answered), sum(len(set(a.asked.evidence)) for a in answered)
    hits = sum(bool(a.found) for a in answered)
    statuses = Counter(a.recall.status for a in answered)
    rows = (
        ("questions", f"{len(answered)}: {listed(statuses)}"),
        ("evidence injected", f"{found} of {evidence} turns ({found / max(1, evidence):.0%})"),
        ("questions helped", f"{hits} of {len(answered)} got at least one ({hits / max(1, len(answered)):.0%})"),
        ("round trip", percentiles([a.round_trip_ms for a in answered])),
        ("in the daemon", percentiles([a.recall.elapsed_ms for a in answered])),
        ("late answers", str(status["late"])),
    )
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in rows:
        table.add_row(Text(name, "bold"), value)
    paper.show(table, indent=2)


def listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda c: -c[1])) or "none"


async def run(paper: Paper, given: Inputs, folder: Path) -> list[str]:
    runtime = folder / "run"
    told = conversation(given.conversation)
    async with Client("demo", runtime, timeout_s=CALL_SECONDS, margin_ms=MARGIN_MS) as client:
        if not await client.ready(START_SECONDS):
            return [f"the daemon did not start: {(folder / 'daemon.log').read_text()}"]
        paper.chapter("events")
        started = time.monotonic()
        result = await replay([*given.recordings, given.conversation], runtime_dir=runtime, speed=0)
        show_played(paper, result, time.monotonic() - started)
        started = time.monotonic()
        closed = await client.drain()
        paper.show(
            f"drained in {time.monotonic() - started:.1f} s: turns that were still open: {closed['closed']}", indent=2
        )

        paper.chapter(f"questions to {told.assistant}, agent {told.agent}")
        answered = await ask_all(client, told)
        for number, one in spread(answered):
            show_question(paper, number, len(answered), one)

        await client.drain()  # the questions' own turns: nothing followed them
        status = await client.status()
    paper.chapter("turns and memories")
    show_counts(paper, status)
    paper.chapter("answers")
    show_answers(paper, answered, status)
    return faults_of(told, result, answered, status)


def main() -> int:
    parser = argparse.ArgumentParser(description="recalld from end to end: sessions in, questions answered.")
    parser.add_argument("--sample", action="store_true", help="play the small invented sample")
    given = inputs(parser.parse_args().sample)
    paper = Paper()
    started = time.monotonic()
    paper.show(f"Playing {given.source}.")
    with tempfile.TemporaryDirectory(prefix="recalld-demo-") as name, daemon(Path(name)) as process:
        wrong = asyncio.run(run(paper, given, Path(name)))
        if process.poll() is not None:
            wrong.append(f"the daemon ended by itself, with exit code {process.returncode}")
    if not wrong and process.returncode != 0:
        wrong.append(f"the daemon stopped with exit code {process.returncode}")
    paper.chapter("verdict")
    for sentence in wrong:
        paper.show(Text(f"WRONG  {sentence}"), indent=2, style="bold red")
    if not wrong:
        paper.show("all is well: nothing lost, nothing late, every turn accounted for", indent=2, style="green")
    paper.show(f"{time.monotonic() - started:.0f} s", indent=2)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
