"""The part of a long memory that is shown: in its bounds, in order, cut where sentences end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recalld.core.block import flat
from recalld.core.excerpt import CHARS_MIN, Passage
from recalld.core.words import Wanted, terms

TURN = (
    "Ada: We spent the day at the lake. The boat has a leak near the stern. Nobody brought towels. It rained later.\n"
    "Bo: I am sorry to hear that. My brother repairs boats in Hoorn. He is cheap and fast. Shall I call him for you?"
)


def cut(chars: int, query: str, text: str = TURN) -> str:
    found = Passage(text, dict.fromkeys(terms(query), 5.0)).cut(chars)
    return found.text if found else ""


def test_what_answers_is_kept_with_what_is_around_it_and_who_said_it() -> None:
    assert cut(10_000, "leak") == flat(TURN)
    assert cut(80, "leak stern") == "Ada: … The boat has a leak near the stern. Nobody brought towels. …"
    assert cut(75, "cheap fast") == "Bo: … He is cheap and fast. Shall I call him for you?"
    assert cut(110, "towels brother") == (
        "Ada: … Nobody brought towels. It rained later. … Bo: … My brother repairs boats in Hoorn. …"
    )


def test_where_nothing_answers_the_beginning_is_kept() -> None:
    assert cut(90, "quantum") == "Ada: We spent the day at the lake. The boat has a leak near the stern. …"


def test_a_line_without_a_full_stop_is_cut_between_words() -> None:
    text = " ".join(f"word{n}" for n in range(300))
    shown = cut(300, "word150", text)
    assert "word150" in shown
    assert all(word in text.split() for word in shown.replace("…", " ").split())


def test_only_what_the_query_asks_for_is_more() -> None:
    passage = Passage(TURN, dict.fromkeys(terms("leak"), 5.0))
    found = passage.cut(70)
    assert found is not None
    assert found.kept is not None
    assert not passage.tells_more(found.kept)
    assert Passage(TURN, dict.fromkeys(terms("brother"), 5.0)).tells_more(found.kept)


@given(
    text=st.lists(st.sampled_from(["Ada: ", "a leak. ", "Is it? ", "東京。", "\n", "x" * 90, " ", "no "]), max_size=80),
    chars=st.integers(0, 400),
    query=st.sampled_from(["leak", "nothing", "", "東京"]),
)
def test_within_its_bound_or_nothing(text: list[str], chars: int, query: str) -> None:
    whole = "".join(text)
    found = Passage(whole, dict.fromkeys(terms(query), 5.0)).cut(chars)
    if found is None:
        assert chars < CHARS_MIN
    else:
        assert len(found.text) <= chars
        assert (found.kept is None) == (found.text == flat(whole))


@pytest.mark.parametrize("text", ["She bought boats, and went.", "the people's children don't", "東京タワー naïve", ""])
def test_terms_that_are_looked_for_are_those_of_the_text(text: str) -> None:
    others = set(terms("tower quantum zebra"))
    assert Wanted({*terms(text), *others}).among(text) >= set(terms(text)) - others
    assert Wanted(others).among(text) == set()
