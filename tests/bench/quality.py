"""What reaches the prompt: of the turns that hold an answer, how many are injected; and how often something is injected
when nothing relevant is known. Each conversation file goes through a running daemon as a gateway's events, at default
settings; then its questions are asked as prompts of new sessions, and as many foreign ones."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

sys.path[0] = str(Path(__file__).parents[1])

from bench.figures import summary  # noqa: E402
from daemon_process import DaemonProcess  # noqa: E402
from recalld.edge import recordings  # noqa: E402
from recalld.edge.recordings import Conversation  # noqa: E402
from recalld.replay import replay  # noqa: E402
from recalld_client import Client  # noqa: E402

DEFAULT_FILES = Path(__file__).parents[3] / "shared" / "data" / "conversations"
FOREIGN = 80  # questions of the other files, asked of each
SEED = 1
RANKED = 50  # memories of a ranked list that are looked at; several may belong to one turn
TTL_MS = 100


class Tally(Struct):
    """One value a question, in each list."""

    injected_recall: list[float] = field(default_factory=list)
    recall_5: list[float] = field(default_factory=list)
    recall_10: list[float] = field(default_factory=list)
    mrr: list[float] = field(default_factory=list)
    session_recall_5: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    waited_ms: list[float] = field(default_factory=list)
    late: int = 0

    def add(self, other: Tally) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def report(self, name: str) -> str:
        figures: dict[str, Any] = {
            key: round(sum(values) / max(1, len(values)), 4)
            for key in ("injected_recall", "recall_5", "recall_10", "mrr", "session_recall_5", "noise")
            for values in [getattr(self, key)]
        }
        told = [n for n in self.tokens if n]
        figures["tokens_mean"] = round(sum(told) / max(1, len(told)), 1)
        figures["latency_ms"] = summary(self.waited_ms)
        counts = {"questions": len(self.recall_5), "foreign": len(self.noise), "late": self.late}
        return json.dumps({"bench": "quality", "file": name, **figures, **counts})


async def main(paths: Sequence[Path], settings: dict[str, str]) -> None:
    told = [(path, recordings.conversation(path)) for path in paths]
    total = Tally()
    with tempfile.TemporaryDirectory(prefix="recalld-") as folder, DaemonProcess(Path(folder), **settings) as daemon:
        async with Client("quality", daemon.runtime_dir) as client:
            assert await client.ready(10)
            for path, conversation in told:
                await replay([path], runtime_dir=daemon.runtime_dir, speed=0, agent=conversation.agent)
            await client.drain(timeout_s=120)
            while (await client.status(timeout_s=30))["vectors_waiting"]:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.2)
            for path, conversation in told:
                tally = Tally()
                foreign = [q.question for p, other in told if p != path for q in other.questions]
                chosen = random.Random(SEED).sample(foreign, min(FOREIGN, len(foreign)))
                await _ask(client, conversation, chosen, tally)
                print(tally.report(path.stem), flush=True)
                total.add(tally)
    print(total.report("all"))


async def _ask(client: Client, conversation: Conversation, foreign: Sequence[str], tally: Tally) -> None:
    agent = conversation.agent
    home = {turn.run_id: s.session_id for s in conversation.sessions for turn in s.turns}

    def ctx(number: int) -> dict[str, str]:
        names = {"sender_name": conversation.user, "agent_name": conversation.assistant}
        return {"agent_id": agent, "session_key": f"agent:{agent}:question-{number}", "trigger": "user", **names}

    async def recall(prompt: str, number: int) -> tuple[set[str], int]:
        started = time.perf_counter()
        answer = await client.recall(prompt, ctx(number), TTL_MS)
        waited_ms = (time.perf_counter() - started) * 1000
        tally.waited_ms.append(waited_ms)
        tally.late += waited_ms > TTL_MS
        tally.tokens.append(answer.tokens)
        return {run for memory in answer.memories for run in memory.get("run_ids", [])}, len(answer.memories)

    for number, asked in enumerate(conversation.questions):
        wanted = set(asked.evidence)
        found = await client.search(asked.question, ctx(number), limit=RANKED)
        runs = list(dict.fromkeys(run for memory in found["memories"] for run in memory.get("run_ids", [])))
        tally.recall_5.append(len(wanted & set(runs[:5])) / len(wanted))
        tally.recall_10.append(len(wanted & set(runs[:10])) / len(wanted))
        tally.mrr.append(next((1 / place for place, run in enumerate(runs, 1) if run in wanted), 0.0))
        sessions = {home[run] for run in wanted}
        tally.session_recall_5.append(len(sessions & {home.get(run) for run in runs[:5]}) / len(sessions))
        injected, _ = await recall(asked.question, number)
        tally.injected_recall.append(len(wanted & injected) / len(wanted))
    for number, question in enumerate(foreign, len(conversation.questions)):
        tally.noise.append(float((await recall(question, number))[1] > 0))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=sorted(DEFAULT_FILES.glob("*.json")))
    parser.add_argument("--set", action="append", default=[], metavar="SECTION__KEY=VALUE", help="a setting to try")
    given = parser.parse_args()
    asyncio.run(main(given.files, dict(pair.split("=", 1) for pair in given.set)))
