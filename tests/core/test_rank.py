"""The score of a memory: each part does what its name says, none depends on what else was found."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recalld.core import rank
from recalld.core.features import WHOLE_CHARS, Passage, cut, encode, features_of, passages
from recalld.core.words import terms
from recalld.edge.features import Entry, FeatureIndex, session_number

BACKGROUND = rank.Background({"the": 0.6, "is": 0.5, "dog": 0.01, "where": 0.2}, 0.0001)
DIMENSIONS = 4


def entry(number: int, text: str, session: str = "s", when: str = "2024-03-05", axis: int = 0) -> Entry:
    created_ms = int(datetime.fromisoformat(when).replace(tzinfo=UTC).timestamp() * 1000)
    vector = np.eye(DIMENSIONS, dtype=np.float16)[axis]
    features = encode(features_of(text, "Ada", "Bo Ek"))
    return Entry(number, session_number(session), True, created_ms, features, vector)


def part(name: str, query: str, *told: Entry, df: dict[str, int] | None = None, docs: int = 100) -> dict[int, float]:
    """The part of each memory's score by that name."""
    index = FeatureIndex(DIMENSIONS)
    index.add(told)
    rows = index.read([e.id for e in told])
    known = dict.fromkeys(terms(query), 1) if df is None else df
    asked = rank.understand(query, "", known, docs, BACKGROUND)
    found = rank.parts(asked, np.eye(DIMENSIONS, dtype=np.float32)[0], rows)
    assert found.keys() == rank.WEIGHTS.keys()
    return dict(zip(rows.ids, found[name].tolist(), strict=True))


def test_lexical_is_the_weighted_share_of_what_is_asked_without_the_names() -> None:
    told = [entry(n, text, f"s{n}") for n, text in enumerate(("Ada: The dog zyx.", "Ada: A zyx.", "Ada: The dog."), 1)]
    found = part("lexical", "Where is the dog zyx of Ada?", *told)
    assert found[1] == pytest.approx(1.0)
    assert found[1] > found[2] > found[3] > 0  # zyx is rarer than dog
    assert part("lexical", "Ada", *told) == {1: 0.0, 2: 0.0, 3: 0.0}  # a name alone is no topic: every turn has it


def test_the_turn_before_and_the_session_lend_what_a_turn_lacks() -> None:
    told = [
        entry(1, "Ada: Which ferry did you take?"),
        entry(2, "Ada: Oh?\nBo Ek: The one at nine."),
        entry(3, "Ada: Fine.\nBo Ek: Yes."),
        entry(4, "Ada: Nothing of it.", "other"),
    ]
    before = part("before", "which ferry", *told)
    assert before[2] == pytest.approx(1.0)
    assert before[1] == before[3] == before[4] == 0.0  # it has it itself; too far; another session
    assert part("session", "which ferry", *told) == {1: 1.0, 2: 1.0, 3: 1.0, 4: 0.0}


def test_the_window_is_the_turn_with_its_neighbours() -> None:
    told = [entry(1, "Ada: x", axis=1), entry(2, "Ada: y", axis=0), entry(3, "Ada: z", axis=1)]
    found = part("window", "q", *told)
    assert found[2] == pytest.approx(1 / math.sqrt(1 + 1))
    assert found[1] == pytest.approx(0.5 / math.sqrt(1 + 0.25))
    assert part("window", "q", entry(9, "Ada: y"))[9] == pytest.approx(1.0)


def test_the_best_passage_is_that_of_the_person_named() -> None:
    told = entry(1, "Ada: I like quince.\nBo Ek: I play the tuba.")
    assert part("passage", "what does Bo play, a tuba?", told)[1] > 0.9
    assert part("passage", "what does Ada play, a tuba?", told)[1] == 0.0
    assert part("passage", "who has a tuba", told)[1] > 0.9  # neither is named


@pytest.mark.parametrize(
    ("query", "when", "expected"),
    [
        ("What happened in March 2024?", "2024-03-20", 1.0),
        ("What happened in March?", "2021-03-20", 1.0),
        ("What happened in March 2024?", "2024-04-02", 0.4),
        ("What happened in March 2024?", "2023-03-02", 0.0),
        ("What happened on 5 March 2024?", "2024-03-06", 1.0),
        ("What happened on March 5, 2024?", "2024-03-30", 0.4),
        ("What happened on March 5, 2024?", "2024-05-30", 0.0),
        ("What happened in 2024?", "2024-11-30", 0.3),
        ("What may happen?", "2024-05-05", 0.0),
        ("What happened on 31 February 2024?", "2024-02-28", 1.0),
        ("What happened?", "2024-02-28", 0.0),
    ],
)
def test_the_date_asked_about(query: str, when: str, expected: float) -> None:
    assert part("date", query, entry(1, "Ada: Something.", when=when))[1] == pytest.approx(expected)


def test_when_is_asked_and_said() -> None:
    told = [entry(1, "Ada: It was yesterday.", "a"), entry(2, "Ada: It was red.", "b")]
    assert part("when", "When was it?", *told) == {1: 1.0, 2: 0.0}
    assert part("when", "What was it?", *told) == {1: 0.0, 2: 0.0}


def test_a_name_that_the_namespace_has_never_heard() -> None:
    told = entry(1, "Ada: My dog is called Rex.")
    assert part("unknown", "Where does Xylo live?", told, df={"live": 3})[1] == 1.0
    assert part("unknown", "Where does Rex live?", told, df={"rex": 1, "live": 3})[1] == 0.0
    assert part("unknown", "Where does Xylo live?", told, df={}, docs=0)[1] == 0.0  # the words came too late to tell
    assert part("unknown", "Dog or cat?", told, df={})[1] == 0.0  # a known word at the start of a sentence


@given(st.lists(st.text("abcdef", min_size=1, max_size=3), max_size=20), st.integers(0, 10**6), st.data())
def test_idf_is_finite_whatever_the_store_holds(query: list[str], docs: int, data: st.DataObject) -> None:
    df = {term: data.draw(st.integers(0, docs)) for term in terms(" ".join(query))}
    asked = rank.understand(" ".join(query), "", df, docs, BACKGROUND)
    assert all(math.isfinite(idf) and idf >= 0 for idf in asked.idf.values())
    assert len(asked.idf) <= rank.QUERY_TERMS_MAX


def test_a_word_that_is_everywhere_in_the_store_loses_its_weight() -> None:
    rare = rank.understand("caro dog", "", {}, 0, BACKGROUND).idf
    common = rank.understand("caro dog", "", {"caro": 90_000}, 100_000, BACKGROUND).idf
    assert rare["caro"] > rare["dog"]
    assert common["caro"] < common["dog"]


def test_what_was_said_before_counts_for_less_than_what_is_asked() -> None:
    asked = rank.understand("and the tuba?", "Ada told of the ferry and of the tuba.", {}, 0, BACKGROUND)
    assert asked.idf["tuba"] == pytest.approx(asked.idf["ferri"] / rank.CONTEXT)
    assert rank.understand("and then?", "Xylo Smith", {"and": 1}, 9, BACKGROUND).names_unknown is False


@given(st.lists(st.sampled_from(["Ada: dog.", "Ada: cat zyx.\nBo Ek: no.", "Ada: tuba"]), min_size=2, max_size=8))
def test_a_score_does_not_depend_on_what_else_was_found(texts: list[str]) -> None:
    told = [entry(n, text, f"s{n % 2}", axis=n % 2) for n, text in enumerate(texts, 1)]
    index = FeatureIndex(DIMENSIONS)
    index.add(told)
    asked = rank.understand("where is the dog zyx", "", {"dog": 2, "zyx": 1}, 10, BACKGROUND)
    vector = np.eye(DIMENSIONS, dtype=np.float32)[0]

    def scored(ids: list[int]) -> dict[int, float]:
        rows = index.read(ids)
        return dict(zip(rows.ids, rank.scores(rank.parts(asked, vector, rows)).tolist(), strict=True))

    together = scored([e.id for e in told])
    for one in told:
        assert scored([one.id])[one.id] == pytest.approx(together[one.id])


def test_passages_follow_who_speaks_and_stay_short() -> None:
    assert passages("Ada: Hi.\nHow are you?\nBo Ek: Well: fine.\nAda: said he", "Ada", "Bo Ek") == [
        Passage(0, "Hi.\nHow are you?"),
        Passage(1, "Well: fine.\nAda: said he"),  # a name in an answer is no change of who speaks
    ]
    assert passages("Bo Ek: Only me.", "Ada", "Bo Ek") == [Passage(1, "Only me.")]
    assert passages("A note.", None, None) == [Passage(2, "A note.")]
    assert passages("", None, None) == [Passage(2, "")]
    long = passages("Ada: " + "A sentence of some words. " * 60, "Ada", None)
    assert len(long) > 3
    assert all(len(p.text) <= 330 for p in long)


def test_a_long_turn_is_cut_where_a_line_or_sentence_ends_and_nothing_is_lost() -> None:
    short = cut([("Ada", "Hi.\nHow are you?"), ("Bo Ek", "Fine.")])
    assert short == ["Ada: Hi.\nHow are you?\nBo Ek: Fine."]
    assert cut([("Ada", ""), ("Bo Ek", "Only me.")]) == ["Bo Ek: Only me."]
    lines = [f"line {n} of some length, about this and about that" for n in range(30)]
    parts = cut([("Ada", "\n".join(lines)), ("Bo Ek", "A long answer. " * 40)])
    assert all(part.startswith(("Ada: ", "Bo Ek: ")) and len(part) <= WHOLE_CHARS for part in parts)
    assert [line.removeprefix("Ada: ") for part in parts for line in part.splitlines() if "line" in line] == lines
    assert "".join(parts).count("A long answer.") == 40
    assert [bool(p) for p in cut([("Ada", "x" * 5_000), ("Bo Ek", "y")])] == [True, True]  # nowhere to cut the first
