"""The word index: one tantivy index for each namespace, on disk, derived from the record.

Terms come from our own analyser, so the index splits at blanks only. A state file tells how far it follows the record;
it is written after the commit, so what is between the two is done again, which changes nothing (delete, then add).
"""

from __future__ import annotations

import shutil
import threading
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import tantivy
from msgspec import Struct

WRITER_BYTES = 15_000_000
_FOOTER_MAGIC = 1337  # tantivy's managed files end with a JSON footer, its length and this number
STATE_VERSION = 1
SEARCHED_MAX = 12  # terms of a query, the rarest here: the others cost most and propose nothing that these do not


class LexicalState(Struct):
    """The index holds every memory up to `memory_id`, without those of the tombstones up to `tombstone_id`."""

    memory_id: int = 0
    tombstone_id: int = 0
    version: int = STATE_VERSION


class LexicalHits(Struct):
    """Memory ids, best first; and what idf needs: `df` of the query's terms among `docs` memories."""

    ids: list[int]
    df: dict[str, int]
    docs: int


def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field("id", indexed=True, fast=True)
    builder.add_text_field("terms", tokenizer_name="whitespace", index_option="freq")
    return builder.build()


class LexicalIndex:
    """One namespace's words. `search` from any thread; `apply` from one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rebuilt: str | None = None
        self._lock = threading.Lock()
        self._writer: tantivy.IndexWriter | None = None
        self._writes = 0
        self.schema = _schema()
        self._state_path = folder / "state.json"
        self.state, self._index = self._open()
        self._searcher = self._index.searcher()

    def _open(self) -> tuple[LexicalState, tantivy.Index]:
        if self.folder.exists() and any(self.folder.iterdir()):
            try:
                state = msgspec.json.decode(self._state_path.read_bytes(), type=LexicalState)
                if state.version != STATE_VERSION:
                    raise ValueError(f"state version {state.version}")  # noqa: TRY301
                verify(self.folder)
                index = tantivy.Index(self.schema, path=str(self.folder), reuse=True)
                index.searcher()
            except (OSError, ValueError, msgspec.MsgspecError) as e:
                self.rebuilt = str(e)
                shutil.rmtree(self.folder)
            else:
                return state, index
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return LexicalState(), tantivy.Index(self.schema, path=str(self.folder), reuse=False)

    @property
    def docs(self) -> int:
        return int(self._searcher.num_docs)

    def search(self, terms: Sequence[str], limit: int) -> LexicalHits:
        """The best `limit` memories by BM25 for the SEARCHED_MAX rarest of the terms: candidates, to be scored
        absolutely by all of them."""
        searcher = self._searcher
        df = {term: searcher.doc_freq("terms", term) for term in dict.fromkeys(terms)}
        present = sorted((term for term, count in df.items() if count), key=df.__getitem__)[:SEARCHED_MAX]
        if not present:
            return LexicalHits([], df, searcher.num_docs)
        query = tantivy.Query.boolean_query(
            [
                (tantivy.Occur.Should, tantivy.Query.term_query(self.schema, "terms", term, index_option="freq"))
                for term in present
            ]
        )
        hits = searcher.search(query, limit=limit, count=False).hits
        ids = searcher.fast_field_values("id", [address for _, address in hits]) if hits else []
        return LexicalHits([int(i) for i in ids if i is not None], df, searcher.num_docs)

    def apply(self, added: Iterable[tuple[int, str]], removed: Iterable[int], state: LexicalState) -> None:
        """Take in memories (id, terms separated by blanks) and removals, commit, and make them findable.

        `state` is what the index holds then. Raises OSError or ValueError where it cannot be written.
        """
        with self._lock:
            writer = self._writer
            if writer is None:
                writer = self._writer = self._index.writer(WRITER_BYTES, num_threads=1)
            for memory_id in removed:
                self._delete(writer, memory_id)
            for memory_id, terms in added:
                self._delete(writer, memory_id)
                document = tantivy.Document()
                document.add_unsigned("id", memory_id)
                document.add_text("terms", terms)
                writer.add_document(document)
            writer.commit()
            temporary = self._state_path.with_suffix(".new")
            temporary.write_bytes(msgspec.json.encode(state))
            temporary.replace(self._state_path)
            self._index.reload()
            self._searcher = self._index.searcher()
            self.state = state

    def _delete(self, writer: tantivy.IndexWriter, memory_id: int) -> None:
        # Not delete_documents_by_term: it makes a signed term of a number, which an unsigned field never matches.
        writer.delete_documents_by_query(tantivy.Query.term_query(self.schema, "id", memory_id))

    def close(self) -> None:
        with self._lock:
            if self._writer is not None:
                self._writer.wait_merging_threads()
                self._writer = None


def verify(folder: Path) -> None:
    """Check every file of a tantivy index against the checksum in its footer. Raises ValueError naming a damaged file.

    The engine itself checks only on demand, and its Python face not at all. Format: body, JSON footer with the body's
    CRC-32, footer length and magic number, both 32 bit little-endian.
    """
    names = msgspec.json.decode((folder / ".managed.json").read_bytes(), type=list[str])
    for name in names:
        path = folder / name
        if name == "meta.json" or not path.exists():  # meta.json is replaced as a whole; files of a past merge are gone
            continue
        data = path.read_bytes()
        magic = int.from_bytes(data[-4:], "little")
        size = int.from_bytes(data[-8:-4], "little")
        if len(data) < 8 or magic != _FOOTER_MAGIC or size > len(data) - 8:
            raise ValueError(f"{name} has no footer")
        footer = msgspec.json.decode(data[-8 - size : -8])
        if zlib.crc32(data[: -8 - size]) != footer["crc"]:
            raise ValueError(f"{name} does not match its checksum")
