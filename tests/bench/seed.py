"""A data folder with so many memories, as a daemon would have left it: record, word index, vector snapshot.

It is made once and kept in `.bench/`, under a name that changes with everything that would make it another one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import msgspec

from bench.texts import ANSWERER, NAMESPACE, SPEAKER, Texts
from daemon_process import DaemonProcess
from recalld.config import IndexConfig
from recalld.core.words import ANALYSER
from recalld.edge.embed import Embedder, StaticEmbedder
from recalld.edge.files import folder_name
from recalld.edge.migrations import MIGRATIONS
from recalld.edge.reader import Reader
from recalld.edge.store import Store
from recalld.edge.units import MemoryRow, TurnRow, Underived, Unit, turn_unit
from recalld.service.counters import Counters
from recalld.service.indexing import Indexing
from recalld.service.writer import Writer

VERSION = 1  # changes whenever this file or `texts.py` would make another folder
CACHE = Path(__file__).parents[2] / ".bench"
BATCH = 1_000
FACT_EVERY = 6  # turns; facts are short, and found beside their turn
SESSION_TURNS = 20
START_MS, STEP_MS = 1_750_000_000_000, 300_000
SNAPSHOT_THREADS = 2


class Parts(NamedTuple):
    """The pieces of a daemon, without the daemon."""

    store: Store
    reader: Reader
    embedder: Embedder
    indexing: Indexing


@asynccontextmanager
async def parts_of(data: Path) -> AsyncIterator[Parts]:
    """Over a data folder that no daemon uses."""
    embedder = StaticEmbedder()
    identity = f"{embedder.identity} {ANALYSER}"
    store = Store(data / "recalld.db")
    await store.open(identity)
    reader = Reader(store.path, store.model_id)
    counters = Counters()
    indexing = Indexing(
        folder=data / "index",
        store=store,
        reader=reader,
        writer=Writer(store, counters),
        embedder=embedder,
        identity=identity,
        counters=counters,
        config=IndexConfig(),
        when_idle=lambda work: work(),
    )
    try:
        yield Parts(store, reader, embedder, indexing)
    finally:
        for index in indexing.namespaces.values():
            if index.lexical is not None:
                index.lexical.close()
        reader.close()
        await store.close()


async def seeded(memories: int, data: Path) -> float:
    """Put a folder with so many memories of NAMESPACE at `data`. Returns the seconds it took to make, now or before."""
    kept = CACHE / f"seed-{memories}-{_key()}"
    if not kept.exists():
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="recalld-") as name:
            await _make(memories, Path(name))
            new = CACHE / f"{os.getpid()}.new"
            shutil.copytree(Path(name) / "data", new / "data")
        (new / "seconds.json").write_bytes(msgspec.json.encode(round(time.monotonic() - started, 1)))
        try:
            new.rename(kept)
        except OSError:  # another run made the same meanwhile
            shutil.rmtree(new)
    shutil.copytree(kept / "data", data)
    return float(msgspec.json.decode((kept / "seconds.json").read_bytes()))


def _key() -> str:
    return f"{VERSION}-{hashlib.blake2b(''.join((*MIGRATIONS, ANALYSER)).encode(), digest_size=4).hexdigest()}"


async def _make(memories: int, folder: Path) -> None:
    data = folder / "data"
    data.mkdir(mode=0o700)
    async with parts_of(data) as parts:
        await _write_record(parts, memories)
        model = (await parts.store.rows("SELECT identity FROM models"))[0][0]
    vectors = data / "index" / folder_name(NAMESPACE) / "vectors"
    snapshot = [sys.executable, "-m", "recalld.edge.snapshot", str(data / "recalld.db"), NAMESPACE, model, str(vectors)]
    await anyio.run_process([*snapshot, str(SNAPSHOT_THREADS)], stdout=None, stderr=None)
    with DaemonProcess(folder):  # its first start makes the word index
        pass


async def _write_record(parts: Parts, memories: int) -> None:
    texts = Texts(seed=memories)
    rows: list[MemoryRow] = []
    turns: list[TurnRow] = []
    written = 0
    while written + len(rows) < memories:
        turn = _turn(texts, parts.store.next_turn_id)
        parts.store.next_turn_id += 1
        turns.append(turn)
        said = [("turn", f"{SPEAKER}: {turn.user}\n{ANSWERER}: {turn.assistant}")]
        if turn.id % FACT_EVERY == 0 and written + len(rows) + 1 < memories:
            said.append(("fact", f"{SPEAKER}: {turn.user}"))
        for kind, text in said:
            number = parts.store.next_memory_id
            parts.store.next_memory_id += 1
            rows.append(MemoryRow(number, NAMESPACE, turn.id, kind, None, text, turn.opened_ms))
        if len(turns) == BATCH:
            await _commit(parts, turns, rows)
            written, rows, turns = written + len(rows), [], []
    await _commit(parts, turns, rows)


def _turn(texts: Texts, number: int) -> TurnRow:
    exchange = texts.exchange()
    at_ms = START_MS + number * STEP_MS
    return TurnRow(
        id=number,
        namespace=NAMESPACE,
        agent=NAMESPACE,
        session=f"agent:{NAMESPACE}:seed-{number // SESSION_TURNS}",
        session_id=None,
        opened_ms=at_ms,
        closed_ms=at_ms + 9_000,
        closed_by="grace",
        status="ok",
        outcome="captured",
        reason=None,
        revision=0,
        speaker=SPEAKER,
        answerer=ANSWERER,
        user=exchange.user,
        assistant=exchange.assistant,
        transcript=None,
        workspace=None,
    )


async def _commit(parts: Parts, turns: list[TurnRow], rows: list[MemoryRow]) -> None:
    entries = parts.indexing.derive([Underived(row.text, SPEAKER, ANSWERER) for row in rows])
    of_turn: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        of_turn.setdefault(row.turn_id or 0, []).append(place)
    units: list[Unit] = []
    for turn in turns:
        places = of_turn[turn.id]
        unit = turn_unit(
            turn, [f"seed-{turn.id}"], [rows[p] for p in places], [entries[p] for p in places], parts.store.model_id, []
        )
        # their notes were written when they were new
        units.append([*unit, ("UPDATE turns SET noted = 1 WHERE id = ?", [(turn.id,)])])
    if units:
        for error in await parts.store.commit(units):
            if error is not None:
                raise error
