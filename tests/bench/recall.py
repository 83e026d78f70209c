"""How long a prompt waits for its memories, while captures arrive; what the daemon weighs then; and how soon what was
stored is found."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench import floors
from bench.figures import emit, middle, spread, summary
from bench.seed import parts_of, seeded
from bench.texts import NAMESPACE, Texts
from daemon_process import DaemonProcess
from recalld.core.words import terms
from recalld.service.question import CANDIDATES
from recalld.service.ranking import searched
from recalld_client import Client, Recall

TTL_MS = 100
CAPTURES_PER_SECOND = 50
WARM_UP = 100
PARTS_MAX = 1_000  # calls of each part by itself
TARGETS = {100_000: ("<= 4", "<= 15"), 10_000: ("<= 2.5", None)}  # p50 and p99 in ms
RSS_TARGET_MIB = "<= 350"
FINDABLE_TARGET_MS = "<= 1000"
SETTLE_SECONDS = 1.0

# Questions of one run are one turn. With a run for each, the daemon would store hundreds of turns a second beside the
# load that is stated.
CTX = {"agent_id": NAMESPACE, "session_key": f"agent:{NAMESPACE}:questions", "run_id": "asked", "trigger": "user"}


class Sizes(NamedTuple):
    memories: int
    questions: int
    events: int
    repeats: int
    starts: int
    notes: int
    attacked: int


class Asked(NamedTuple):
    waited_ms: float
    answer: Recall


async def recall(sizes: Sizes) -> None:
    """With the whole store and with a tenth of it."""
    for memories in (sizes.memories, sizes.memories // 10):
        with tempfile.TemporaryDirectory(prefix="recalld-") as name:
            folder = Path(name)
            seconds = await seeded(memories, folder / "data")
            emit("seed", f"{memories}", seconds, "s", target="< 240" if memories == 100_000 else None)
            prompts = prompts_of(sizes.questions, memories)
            with DaemonProcess(folder) as daemon:
                rss_before = rss_mib(daemon)
                asked, status, captures = await _ask_under_load(daemon, prompts)
                rss_after = rss_mib(daemon)
            parts = await _parts(folder, prompts[:PARTS_MAX], asked)
            _report(sizes, memories, asked, status, captures, parts)
            if memories == sizes.memories:
                _report_memory(memories, rss_before, rss_after)


def prompts_of(count: int, memories: int) -> list[str]:
    """In turn about something that was said, and about something that was not."""
    texts, said = Texts(seed=2), Texts(seed=memories)
    return [texts.prompt_about(said.exchange()) if i % 2 else texts.prompt() for i in range(count)]


async def _ask_under_load(
    daemon: DaemonProcess, prompts: list[str]
) -> tuple[list[Asked], dict[str, Any], dict[str, Any]]:
    """One question at a time, each as soon as the one before is answered."""
    asked: list[Asked] = []
    async with Client("bench", daemon.runtime_dir) as client:
        assert await client.ready(10)
        for prompt in prompts[:WARM_UP]:
            await client.recall(prompt, CTX, TTL_MS)
        late_before = (await client.status())["late"]
        with captures_into(daemon, CAPTURES_PER_SECOND) as outcome:
            for prompt in prompts:
                started = time.perf_counter()
                answer = await client.recall(prompt, CTX, TTL_MS)
                asked.append(Asked((time.perf_counter() - started) * 1000, answer))
        status = await client.status(timeout_s=30)
        status["late"] -= late_before
    return asked, status, outcome


@contextmanager
def captures_into(daemon: DaemonProcess, rate: int) -> Iterator[dict[str, Any]]:
    """Another process that captures at `rate` events/s meanwhile; afterwards, what became of its events."""
    command = [sys.executable, str(Path(__file__).parent / "captures.py"), str(daemon.runtime_dir)]
    outcome: dict[str, Any] = {}
    with subprocess.Popen(
        [*command, str(rate), "3"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(SETTLE_SECONDS)
        yield outcome
        process.stdin.close()
        outcome.update(json.loads(process.stdout.read()))


async def _parts(folder: Path, prompts: list[str], asked: list[Asked]) -> dict[str, list[float]]:
    """Milliseconds of each part by itself, on what the daemon left: one thread, nothing beside it."""
    parts: dict[str, list[float]] = {}
    async with parts_of(folder / "data") as daemon:
        daemon.indexing.open_all()
        index = daemon.indexing.namespaces[NAMESPACE]
        lexical = index.lexical
        assert lexical is not None
        queries = [searched(terms(prompt)) for prompt in prompts]
        vectors = [daemon.embedder.embed([prompt])[0] for prompt in prompts]
        parts["embedding"] = floors.timed(lambda prompt: daemon.embedder.embed([prompt]), prompts)
        parts["vector search"] = floors.timed(lambda v: index.vectors.search(v, CANDIDATES), vectors)
        parts["lexical search"] = floors.timed(lambda q: lexical.search(q, CANDIDATES), queries)
        ids = [
            list(dict.fromkeys(lexical.search(q, CANDIDATES).ids + index.vectors.search(v, CANDIDATES)))
            for q, v in zip(queries, vectors, strict=True)
        ]
        parts["fetch"] = floors.timed(index.features.read, ids)
    sizes = (250 + sum(map(len, prompts)) // len(prompts), _answer_bytes(asked))
    parts["bus echo"] = floors.bus_echo(folder, len(prompts), *sizes)
    parts["socket echo"] = floors.socket_echo(folder, len(prompts), *sizes)
    return parts


def _answer_bytes(asked: list[Asked]) -> int:
    """Mean size of a `context`."""
    return 250 + sum(len(a.answer.text) + len(json.dumps(a.answer.memories)) for a in asked) // len(asked)


def _report(
    sizes: Sizes,
    memories: int,
    asked: list[Asked],
    status: dict[str, Any],
    captures: dict[str, Any],
    parts: dict[str, list[float]],
) -> None:
    bench = f"recall-{memories}"
    middles = {name: middle(values) for name, values in parts.items()}
    for name, values in parts.items():
        emit(bench, f"floor: {name}", middles[name], "ms", **summary(values))
    # the longest way that every answer has to go, if each step were alone on the machine
    floor = sum(middles[name] for name in ("bus echo", "embedding", "vector search", "fetch"))
    waited = summary([a.waited_ms for a in asked])
    size = -(-len(asked) // sizes.repeats)
    blocks = [summary([a.waited_ms for a in asked[i : i + size]]) for i in range(0, len(asked), size)]
    targets = TARGETS.get(memories, (None, None))
    for percentile, target in zip(("p50", "p99"), targets, strict=True):
        repeats = spread([block[percentile] for block in blocks])
        emit(bench, percentile, waited[percentile], "ms", target=target, floor=floor, spread=repeats, **waited)
    inside = summary([a.answer.elapsed_ms for a in asked])
    emit(bench, "in the daemon", inside["p50"], "ms", **inside)
    late = [a for a in asked if a.answer.status != "timeout" and a.waited_ms > TTL_MS]
    emit(bench, "late answers", len(late), "answers", target="0", late_in_daemon=status["late"], n=len(asked))
    counts = Counter(" ".join(filter(None, (a.answer.status, a.answer.reason))) for a in asked)
    emit(bench, "timeouts", counts["timeout"], "questions", target="0", statuses=dict(counts), n=len(asked))
    rate = captures["rate"]
    emit(bench, "captures beside it", rate, "events/s", sent=captures["sent"], lost=captures["unacknowledged"])


def rss_mib(daemon: DaemonProcess) -> dict[str, float]:
    """Resident memory by kind."""
    assert daemon.process is not None
    text = Path(f"/proc/{daemon.process.pid}/status").read_text()
    kinds = {"total": "VmRSS", "anon": "RssAnon", "file": "RssFile", "peak": "VmHWM"}
    found = {kind: re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE) for kind, field in kinds.items()}
    return {kind: round(int(match[1]) / 1024, 1) for kind, match in found.items() if match}


def _report_memory(memories: int, before: dict[str, float], after: dict[str, float]) -> None:
    with tempfile.TemporaryDirectory(prefix="recalld-") as name, DaemonProcess(Path(name)) as empty:
        floor = rss_mib(empty)
    emit(
        "memory",
        f"{memories} memories, after recall",
        after["total"],
        "MiB",
        target=RSS_TARGET_MIB if memories == 100_000 else None,
        floor=floor["total"],
        after=after,
        at_start=before,
        empty_store=floor,
    )


async def findable(sizes: Sizes) -> None:
    """From the reply to `store`, when the note is on disk, to the first search that finds it."""
    with tempfile.TemporaryDirectory(prefix="recalld-") as name:
        await seeded(sizes.memories, Path(name) / "data")
        with DaemonProcess(Path(name)) as daemon:
            async with Client("findable", daemon.runtime_dir) as client:
                at_all: list[list[float]] = []
                by_words: list[list[float]] = []
                for repeat in range(sizes.repeats):
                    texts = Texts(seed=100 + repeat)
                    at_all.append([await _until_found(client, texts, same=True) for _ in range(sizes.notes)])
                    by_words.append([await _until_found(client, texts, same=False) for _ in range(sizes.notes)])
    for figure, repeats in (("as it was said", at_all), ("by two rare words", by_words)):
        found = summary([v for values in repeats for v in values])
        maxima = spread([max(values) for values in repeats])
        emit("findable", figure, found["max"], "ms", target=FINDABLE_TARGET_MS, spread=maxima, **found)


async def _until_found(client: Client, texts: Texts, *, same: bool) -> float:
    """`same`: asked in its own words, which any search finds. Else by two rare words of it, in a question on another
    topic: its vector is often too far off, and then it is found once its words are. The maximum tells that."""
    rare = [texts.name(), texts.name()]
    note = " ".join([*texts.words(60, topic=1), *rare])
    query = note if same else " ".join([*rare, *texts.words(12, topic=2)])
    id = (await client.store(note, CTX))["id"]
    started = time.perf_counter()
    while True:
        found = await client.search(query, CTX, limit=100)
        waited_ms = (time.perf_counter() - started) * 1000
        if any(memory["id"] == id for memory in found["memories"]):
            return waited_ms
        assert waited_ms < 30_000, "a stored note was never found"
