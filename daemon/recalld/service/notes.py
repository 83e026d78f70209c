"""Daily notes: what was captured, for people, appended a little later than it is stored."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread

from recalld import log
from recalld.config import Config
from recalld.core.clean import shorten
from recalld.edge.files import append_note, folder_name, note_path
from recalld.edge.store import Store
from recalld.edge.units import TurnRow, noted_unit
from recalld.errors import StorageError
from recalld.service.counters import Counters
from recalld.service.writer import Writer

PAUSE_SECONDS = 1.0  # turns that close within it share one round: nobody reads a note the second it is written
ROUND_MAX = 256
TEXT_CHARS_MAX = 300


class Notes:
    def __init__(self, store: Store, writer: Writer, counters: Counters, config: Callable[[], Config]) -> None:
        self._store = store
        self._writer = writer
        self._counters = counters
        self._config = config
        self._log = log.get("notes")
        self._lock = anyio.Lock()
        self._wake = anyio.Event()
        self._wake.set()  # at start: what the last daemon stored and did not note

    def wake(self) -> None:
        """Turns were stored."""
        self._wake.set()

    async def run(self) -> None:
        """Write notes when there is something to note, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            await anyio.sleep(PAUSE_SECONDS)
            await self.write()

    async def write(self) -> None:
        """Note every stored turn that has no note yet. What fails is tried again with the next turn."""
        async with self._lock:
            try:
                while rows := await self._store.unnoted(ROUND_MAX):
                    await anyio.to_thread.run_sync(self._append, rows)
                    await self._writer.write(noted_unit([row.id for row in rows]))
            except (OSError, StorageError) as e:  # the anchors keep a section from being written twice
                self._counters.faults["notes"] = f"daily notes: {e}"
                self._log.warning("daily notes not written", error=str(e))
            else:
                self._counters.faults.pop("notes", None)

    def _append(self, rows: list[TurnRow]) -> None:
        place = self._config().notes.place
        for row in rows:
            if row.outcome == "captured" and place != "off":
                self._append_one(row, place)

    def _append_one(self, row: TurnRow, place: str) -> None:
        own = self._config().data_path / "notes" / folder_name(row.namespace)
        workspace = Path(row.workspace) if place == "workspace" and row.workspace else None
        if workspace is None or not workspace.is_absolute() or not workspace.is_dir():
            _append_to(own, row)
            return
        try:
            _append_to(workspace / "memory", row)
        except OSError as e:  # one agent's folder is no reason to note nothing
            self._log.warning("workspace cannot be written; noted in the data folder", agent=row.agent, error=str(e))
            _append_to(own, row)


def _append_to(folder: Path, row: TurnRow) -> None:
    anchor = f"<!-- session:{_anchor(row.session)} turn:{row.id} transcript:{_anchor(row.transcript or '')} -->"
    when = time.strftime("%H:%M", time.localtime(row.opened_ms / 1000))
    spoken = ((row.speaker, row.user), (row.answerer, row.assistant))
    lines = [f"- {name}: {_bullet(text)}" for name, text in spoken if text]
    append_note(note_path(folder, row.opened_ms), anchor, f"## {when}", lines)


def _bullet(text: str) -> str:
    """One line: a heading, a bullet or an anchor in the text cannot pose as one of the note's own."""
    return shorten(" ".join(text.split()), TEXT_CHARS_MAX).replace("<!--", "‹!--")


def _anchor(text: str) -> str:
    return " ".join(text.split()).replace("--", "- -")
