"""Which memories are injected: relevant, one for each turn, five different things, and none that was given lately."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from core.test_pack import asked, memory
from recalld.core.choose import choose, digest
from recalld.core.distinct import adds_nothing, said
from recalld.core.given import Recent
from recalld.core.pack import LONG_CHARS, RecallSettings
from recalld.core.scored import Scored
from recalld.core.words import terms

SETTINGS = RecallSettings()
SHARE = dict.fromkeys(terms("i the a to is are in of my you that it for be have really and"), 0.3)


def chosen(ranked: list[Scored], recent: Recent | None = None, query: str = "") -> list[int]:
    return [s.memory.id for s in choose(ranked, SETTINGS, asked(query), SHARE, recent or Recent())]


def test_below_the_floor_nothing_is_injected() -> None:
    assert chosen([memory(1, score=SETTINGS.floor - 0.01)]) == []
    assert chosen([memory(1, score=SETTINGS.floor)]) == [1]


def test_five_memories_and_one_for_each_turn() -> None:
    ranked = [memory(n, f"Number {n}", score=2 - n / 100, turn=n // 2) for n in range(1, 20)]
    assert chosen(ranked) == [1, 2, 4, 6, 8]


def test_a_turn_goes_before_its_fact_unless_it_is_long() -> None:
    fact, turn = memory(2, "Ada: I like tea.", turn=1, kind="fact"), memory(1, "Ada: Well. I like tea.", turn=1)
    other = memory(3, "Bo: It rained.", turn=2)
    assert chosen([fact, other, turn]) == [1, 3]
    turn.memory.text += " And so on." * LONG_CHARS
    assert chosen([fact, other, turn]) == [2, 3]
    assert chosen([turn, other, fact]) == [1, 3]


def test_what_says_the_same_takes_no_place() -> None:
    ranked = [
        memory(1, "Ada: My winter tyres are in the barn behind the house."),
        memory(2, "Ada: my winter tyres really are in the barn behind the house!"),
        memory(3, "Ada: My summer tyres are in the barn behind the house."),
        memory(4, "Ada: My winter tyres are not in the barn behind the house."),
        memory(5, "Bo: My winter tyres are in the barn behind the house."),
    ]
    assert chosen(ranked) == [1, 3, 4, 5]


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (
            "Ada: The train to Graz leaves at 9:40 from platform 3.",
            "Ada: The train to Graz leaves at 9:50 from platform 3.",
        ),
        ("Ada: I can eat nuts and I like them a lot.", "Ada: I can't eat nuts and I like them a lot."),
        ("Ada: I like tea and milk.", "Ada: I like tea. Nobody here has any milk, and I have no time."),
    ],
)
def test_what_differs_in_what_matters_is_not_the_same(new: str, old: str) -> None:
    assert not adds_nothing(said(new), said(old), SHARE)


def test_what_was_given_lately_is_not_given_again_nor_is_what_repeats_it() -> None:
    turn, fact = memory(1, "Ada: I like tea.", turn=1), memory(2, "Ada: I like tea.", turn=1, kind="fact")
    again, other = memory(3, "Ada: I like tea!", turn=2), memory(4, "Bo: It rained.", turn=3)
    recent = Recent({1: None}, {1}, first=False)
    assert chosen([turn, again, other], recent) == [4]
    assert chosen([fact, other], recent) == [4]


def test_of_a_memory_shown_in_part_the_rest_may_come() -> None:
    long = memory(1, "Ada: The key is here. The boat is there. " + "It rained. " * 20)
    recent = Recent({1: frozenset({0})}, first=False)
    assert chosen([long], recent, "boat") == [1]
    assert chosen([long], recent, "key") == []


def test_what_is_left_out_has_its_reason() -> None:
    ranked = [
        memory(1, "Ada: I like tea.", turn=1),
        memory(2, "Ada: I like tea.", turn=1, kind="fact"),
        memory(3, "Ada: I like tea!", turn=2),
        memory(4, "Bo: It rained.", turn=3),
        memory(5, "Bo: The train is late.", turn=4),
        memory(6, "Bo: The boat is green.", turn=5),
        memory(7, "Bo: The boat is old.", turn=6, score=0.1),
    ]
    choose(ranked, replace(SETTINGS, items_max=1), {}, SHARE, Recent({4: None}, first=False))
    assert [s.verdict for s in ranked] == ["", "same_turn", *["items_max"] * 4, "below_floor"]
    for scored in ranked:
        scored.verdict = ""
    choose(ranked, replace(SETTINGS, items_max=2), {}, SHARE, Recent({4: None}, first=False))
    reasons = ["", "same_turn", "near_duplicate", "given_recently", "", "items_max", "below_floor"]
    assert [s.verdict for s in ranked] == reasons
    other = memory(1)
    choose([other], replace(SETTINGS, categories=("preference",)), {}, SHARE, Recent())
    assert other.verdict == "category"


def test_a_digest_tells_what_was_not_found() -> None:
    found = [memory(9, "Ada: I like tea.", turn=4)]
    newest = [
        memory(12, "Ada: I like tea!", turn=7, kind="fact").memory,
        memory(11, "A note.", kind="note").memory,
        memory(10, "Ada: Milk too.", turn=4, kind="fact").memory,
        memory(9, "Ada: I like tea.", turn=4).memory,
        memory(8, "A note of mine.", kind="note").memory,
    ]
    assert [m.id for m in digest(newest, found, (), SHARE)] == [11, 8]
    assert digest(newest, found, ("preference",), SHARE) == []
