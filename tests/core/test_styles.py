"""Styles: presets between nothing but the obvious and all that is plausible, and never against what was chosen."""

from __future__ import annotations

from typing import get_args

import pytest

from recalld.core.choose import choose
from recalld.core.given import Recent
from recalld.core.pack import RecallSettings, StyleName
from recalld.core.scored import Candidate, Scored
from recalld.core.styles import STYLES, resolve

DEFAULT = RecallSettings()


def ids(ranked: list[Scored], settings: RecallSettings) -> list[int]:
    return [s.memory.id for s in choose(ranked, settings, {}, {}, Recent())]


def styled(style: StyleName) -> RecallSettings:
    return resolve(RecallSettings(style=style), ())


def found(n: int, category: str | None, kind: str = "fact") -> Scored:
    return Scored(Candidate(n, None, kind, category, "words", 0, None, []), 1.0, {"lexical": 0.0, "vector": 0.0})


def test_every_name_has_a_style() -> None:
    assert set(get_args(StyleName)) == {"", *STYLES}


def test_the_defaults_are_as_measured() -> None:
    assert resolve(DEFAULT, ()) == DEFAULT
    balanced = styled("balanced")
    assert (balanced.floor, balanced.items_max, balanced.categories) == (DEFAULT.floor, DEFAULT.items_max, ())


def test_from_the_strictest_to_the_most_eager() -> None:
    order: list[StyleName] = ["precision-heavy", "strict", "balanced", "contextual", "recall-heavy"]
    settings = [styled(style) for style in order]
    assert [s.floor for s in settings] == sorted((s.floor for s in settings), reverse=True)
    assert [s.items_max for s in settings] == sorted(s.items_max for s in settings)
    assert len({s.floor for s in settings}) == len({s.items_max for s in settings}) == len(order)


def test_the_query_mode_has_a_style_unless_one_is_named() -> None:
    full = resolve(RecallSettings(query_mode="full"), ())
    assert (full.floor, full.items_max) == (styled("contextual").floor, styled("contextual").items_max)
    assert resolve(RecallSettings(query_mode="recent"), ()).floor == DEFAULT.floor
    named = resolve(RecallSettings(query_mode="full", style="strict"), ())
    assert (named.floor, named.items_max) == (styled("strict").floor, styled("strict").items_max)


@pytest.mark.parametrize("style", STYLES)
def test_what_was_chosen_wins(style: StyleName) -> None:
    settings = RecallSettings(style=style, floor=0.4, items_max=3, categories=("plan",))
    assert resolve(settings, {"style", "floor", "items_max", "categories"}) == settings
    assert resolve(settings, {"floor"}).floor == 0.4
    assert resolve(settings, {"items_max"}).items_max == 3


def test_there_are_never_no_items_and_never_more_than_allowed() -> None:
    assert resolve(RecallSettings(style="precision-heavy", items_max=1), ()).items_max == 1
    assert resolve(RecallSettings(style="recall-heavy", items_max=50), ()).items_max == 50


def test_preference_only_injects_preferences_and_rules() -> None:
    ranked = [found(1, None, "turn"), found(2, "preference"), found(3, "fact"), found(4, "rule", "note")]
    assert ids(ranked, styled("preference-only")) == [2, 4]
    assert ids(ranked, DEFAULT) == [1, 2, 3, 4]


def test_a_turn_that_is_left_out_does_not_hide_the_fact_drawn_from_it() -> None:
    turn, fact = found(1, None, "turn"), found(2, "preference")
    turn.memory.turn_id = fact.memory.turn_id = 9
    assert ids([turn, fact], styled("preference-only")) == [2]
