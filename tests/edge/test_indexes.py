"""The derived indexes: what they find, what they survive, and how exact the tail is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recalld.edge.embed import DIMENSIONS, StaticEmbedder, Vectors
from recalld.edge.files import append_note, folder_name, write_atomic
from recalld.edge.lexical import LexicalIndex, LexicalState
from recalld.edge.vectors import BLOCK, Snapshot, Tail, VectorIndex


def units(n: int, seed: int = 1) -> Vectors:
    vectors = np.random.default_rng(seed).standard_normal((n, DIMENSIONS)).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


def test_the_tail_finds_what_an_exact_scan_finds() -> None:
    vectors = units(2 * BLOCK + 500)
    tail = Tail()
    for start in range(0, len(vectors), 777):
        part = vectors[start : start + 777]
        tail.add(list(range(start + 1, start + 1 + len(part))), part)
    assert len(tail) == len(vectors)
    for query in units(20, seed=2):
        exact = set((np.argsort(-(vectors @ query))[:10] + 1).tolist())
        found = set(tail.search(query, 32)[0].tolist())
        assert len(exact & found) >= 9  # int8 blocks: candidates, rescored afterwards
    assert tail.search(vectors[5], 1)[0].tolist() == [6]
    assert tail.search(vectors[-1], 1)[0].tolist() == [len(vectors)]


def test_vectors_of_another_model_do_not_go_among_those_that_are_there() -> None:
    index = VectorIndex()
    index.add([1, 2], units(2))
    with pytest.raises(ValueError, match="8 dimensions do not go among those of 256"):
        index.add([3], np.eye(1, 8, dtype=np.float32))
    assert set(index.search(units(1)[0], 10)) == {1, 2}


def test_vectors_may_come_in_any_order() -> None:
    index, vectors = VectorIndex(), units(3)
    for n in (2, 0, 1):
        index.add([n + 1], vectors[n][None, :])
    assert [index.search(vector, 1) for vector in vectors] == [[1], [2], [3]]


def test_an_empty_index_finds_nothing() -> None:
    assert VectorIndex().search(units(1)[0], 10) == []


def test_the_lexical_index_follows_adds_removals_and_replacements(tmp_path: Path) -> None:
    index = LexicalIndex(tmp_path / "x")
    index.apply([(1, "red boat"), (2, "red car"), (3, "blue boat")], [], LexicalState(3, 0))
    hits = index.search(["red", "boat"], 10)
    assert hits.ids[0] == 1
    assert set(hits.ids) == {1, 2, 3}
    assert (hits.docs, hits.df) == (3, {"red": 2, "boat": 2})
    index.apply([(2, "green car")], [1], LexicalState(3, 1))
    assert index.search(["red"], 10).ids == []
    assert index.docs == 2
    index.close()
    again = LexicalIndex(tmp_path / "x")
    assert again.rebuilt is None
    assert (again.state.memory_id, again.state.tombstone_id, again.docs) == (3, 1, 2)
    assert again.search(["never", "seen"], 10).ids == []
    again.close()


@pytest.mark.parametrize("name", ["state.json", "meta.json", ".managed.json"])
def test_a_lexical_index_without_its_bookkeeping_is_made_anew(tmp_path: Path, name: str) -> None:
    index = LexicalIndex(tmp_path / "x")
    index.apply([(1, "red boat")], [], LexicalState(1, 0))
    index.close()
    (tmp_path / "x" / name).write_bytes(b"\0garbage")
    again = LexicalIndex(tmp_path / "x")
    assert again.rebuilt is not None
    assert again.state == LexicalState()
    again.close()


def test_a_snapshot_that_is_missing_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"snapshot\.json"):
        Snapshot(tmp_path, "m")
    (tmp_path / "snapshot.json").write_bytes(b"{}")
    with pytest.raises(ValueError, match=r"snapshot\.json"):
        Snapshot(tmp_path, "m")


def test_the_embedder_needs_no_network_and_knows_likeness() -> None:
    embedder = StaticEmbedder()
    a, b, c = embedder.embed(["my dog barks at night", "the puppy is noisy in the evening", "quarterly tax report"])
    assert np.linalg.norm(a) == pytest.approx(1.0, abs=1e-5)
    assert float(a @ b) > float(a @ c)
    assert embedder.embed([""]).shape == (1, DIMENSIONS)
    assert "256" in embedder.identity


def test_a_note_section_is_written_once_and_nothing_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "memory" / "2026-01-01.md"
    for _ in range(2):
        append_note(path, "<!-- session:s turn:1 -->", "## 10:00", ["- Ada: hi"])
    append_note(path, "<!-- session:s turn:2 -->", "## 10:05", ["- Ada: bye"])
    assert path.read_text() == (
        "# 2026-01-01\n\n## 10:00\n<!-- session:s turn:1 -->\n- Ada: hi\n\n## 10:05\n<!-- session:s turn:2 -->\n- Ada: bye\n"
    )
    (tmp_path / "secret").write_text("x")
    link = tmp_path / "memory" / "2026-01-02.md"
    link.symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match=r"symbolic link|Too many levels"):
        append_note(link, "<!-- a -->", "## 1", ["- b"])


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_folder_names_are_safe_and_different() -> None:
    names = [folder_name(n) for n in ("main", "../etc", "a/b", "a_b", "a b", "ä", "x" * 300, "")]
    assert len(set(names)) == len(names)
    assert all("/" not in n and not n.startswith(".") for n in names)
    assert all(len(n) < 60 for n in names)
