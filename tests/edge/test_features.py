"""The features of a namespace: the same rows from the file, from the tail above it, and from any mixture of the two."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recalld.core.features import NONE, SITTING_TURNS, encode, features_of
from recalld.edge.features import Entry, FeatureIndex, session_number, write_file

DIMENSIONS = 8


HOUR_MS = 3_600_000


def entry(number: int, session: str | None, text: str = "", at_ms: int = 0) -> Entry:
    vector = np.full(DIMENSIONS, number, dtype=np.float16)
    features = encode(features_of(text or f"Ada: word{number}", "Ada", None))
    return Entry(number, session_number(session), session is not None, at_ms or number * 1000, features, vector)


def seen(index: FeatureIndex, ids: list[int]) -> dict[int, Any]:
    """By memory: its neighbours, vector, time, terms of its session."""
    rows = index.read(ids)
    names = [int(v[0]) for v in rows.vectors]  # a memory's vector tells its id, a neighbour's too
    return {
        memory_id: (
            None if rows.before[n] == NONE else names[rows.before[n]],
            None if rows.after[n] == NONE else names[rows.after[n]],
            names[n],
            int(rows.created_ms[n]),
            sorted(set(rows.session_numbers[rows.session[n]].tolist())),
            [rows.numbers[rows.passage == p].tolist() for p in np.flatnonzero(rows.owner == n)],
        )
        for n, memory_id in enumerate(rows.ids)
    }


def test_neighbours_of_what_was_asked_for_are_there_too_and_theirs_are_known() -> None:
    index = FeatureIndex(DIMENSIONS)
    index.add([entry(n, "a") for n in range(1, 8)])
    found = seen(index, [4])
    assert set(found) == {3, 4, 5}
    assert [found[n][:2] for n in (3, 4, 5)] == [(2, 4), (3, 5), (4, 6)]


def test_sessions_that_alternate_keep_their_order_and_notes_have_no_neighbour() -> None:
    index = FeatureIndex(DIMENSIONS)
    index.add([entry(1, "a"), entry(2, "b"), entry(3, None), entry(4, "a"), entry(5, "b")])
    found = seen(index, [1, 2, 3])
    assert {n: found[n][:2] for n in found} == {1: (None, 4), 2: (None, 5), 3: (None, None), 4: (1, None), 5: (2, None)}
    assert found[3][4] == []


def test_a_session_that_goes_on_for_years_is_read_by_sittings(tmp_path: Path) -> None:
    told = [entry(n, "a", at_ms=n * HOUR_MS) for n in range(1, 4)]
    told += [entry(n, "a", at_ms=(n + 20) * HOUR_MS) for n in range(4, 4 + SITTING_TURNS + 2)]
    index = FeatureIndex(DIMENSIONS)
    index.add(told)
    for _ in range(2):
        found = seen(index, [e.id for e in told])
        assert [found[n][:2] for n in (3, 4, 5)] == [(2, None), (None, 5), (4, 6)]
        last, first = SITTING_TURNS + 3, SITTING_TURNS + 4
        assert found[last][:2] == (last - 1, None)
        assert found[first][:2] == (None, first + 1)
        assert [len(found[n][4]) for n in (3, 4, first)] == [3, SITTING_TURNS, 2]  # a term of each turn
        assert not set(found[3][4]) & set(found[4][4])
        write_file(tmp_path / "f", told[:10], DIMENSIONS)
        index.take(tmp_path / "f")


def test_what_is_not_there_is_not_read() -> None:
    index = FeatureIndex(DIMENSIONS)
    assert index.read([1, 2]).ids == []
    index.add([entry(1, "a")])
    assert index.read([2]).ids == []


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_file_and_tail_say_the_same(tmp_path: Path, data: st.DataObject) -> None:
    sessions = data.draw(st.lists(st.sampled_from(["a", "b", None]), min_size=1, max_size=12))
    hours = accumulate(data.draw(st.lists(st.sampled_from([0, 1, 7]), min_size=12, max_size=12)))
    entries = [
        entry(n, session, at_ms=HOUR_MS * hour + n)
        for (n, session), hour in zip(enumerate(sessions, 1), hours, strict=False)
    ]
    plain = FeatureIndex(DIMENSIONS)
    plain.add(entries)
    cut = data.draw(st.integers(0, len(entries)))
    write_file(tmp_path / "f", entries[:cut], DIMENSIONS)
    mixed = FeatureIndex(DIMENSIONS)
    if data.draw(st.booleans()):  # the file is taken in by a running daemon, or at its start
        mixed.add(entries)
        mixed.take(tmp_path / "f")
    else:
        mixed.take(tmp_path / "f")
        mixed.add(entries[cut:])
    ids = [e.id for e in entries]
    assert seen(mixed, ids) == seen(plain, ids)
    gone = data.draw(st.sets(st.sampled_from(ids)))
    left = FeatureIndex(DIMENSIONS)
    left.add(e for e in entries if e.id not in gone)
    mixed.remove(gone)
    after, expected = seen(mixed, ids), seen(left, ids)
    assert after.keys() == expected.keys()
    for memory_id in after:
        assert after[memory_id][:4] == expected[memory_id][:4]


def test_a_removed_turn_of_the_file_is_gone_when_the_file_is_made_anew(tmp_path: Path) -> None:
    entries = [entry(n, "a") for n in (1, 2, 3)]
    write_file(tmp_path / "f", entries, DIMENSIONS)
    index = FeatureIndex(DIMENSIONS)
    index.take(tmp_path / "f")
    index.remove([2])
    assert set(seen(index, [1, 2, 3])) == {1, 3}
    assert seen(index, [1])[1][:2] == (None, 3)
    write_file(tmp_path / "g", [entries[0], entries[2]], DIMENSIONS)
    index.take(tmp_path / "g")
    told = {n for numbers in seen(index, [1])[1][5] for n in numbers}
    assert told <= set(seen(index, [1])[1][4])
    assert len(seen(index, [1])[1][4]) == 2


def test_what_is_removed_while_the_file_is_made_stays_removed(tmp_path: Path) -> None:
    entries = [entry(n, "a") for n in (1, 2, 3, 4)]
    index = FeatureIndex(DIMENSIONS)
    index.add(entries)
    write_file(tmp_path / "f", entries[:3], DIMENSIONS)
    index.remove([2, 4])
    for _ in range(2):
        index.take(tmp_path / "f")
        assert set(seen(index, [1, 2, 3, 4])) == {1, 3}
        assert seen(index, [1])[1][:2] == (None, 3)


def test_an_empty_file_is_a_file(tmp_path: Path) -> None:
    write_file(tmp_path / "f", [], DIMENSIONS)
    index = FeatureIndex(DIMENSIONS)
    index.take(tmp_path / "f")
    index.add([entry(1, "a")])
    assert set(seen(index, [1])) == {1}


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\x05\0\0\0\0\0\0\0{}...")
    with pytest.raises(ValueError, match=r"."):
        FeatureIndex(DIMENSIONS).take(tmp_path / "f")


def test_a_vector_that_comes_later_is_read_as_zeros_until_then() -> None:
    index = FeatureIndex()
    index.add([entry(n, "a")._replace(vector=None) for n in (1, 2)])
    assert index.read([1]).vectors.shape == (2, 0)
    index.set_vector(2, np.full(DIMENSIONS, 2, dtype=np.float32))
    index.set_vector(9, np.full(DIMENSIONS, 9, dtype=np.float32))  # it was removed meanwhile
    rows = index.read([1, 2])
    assert rows.vectors.tolist() == [[0.0] * DIMENSIONS, [2.0] * DIMENSIONS]
