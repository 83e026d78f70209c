"""What besides relevance orders memories: bounded, never against the floor, and nothing that does not stand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recalld.core import choose as module
from recalld.core.given import Recent
from recalld.core.pack import RecallSettings, memory_of
from recalld.core.policy import (
    BAND,
    DAY_MS,
    HALF_LIFE_DAYS,
    LINK_SHARE,
    LINKED_MAX,
    SOURCE_PRIORS,
    adjust,
    joined,
    linked_to,
    recency,
    source_prior,
    succeeded,
)
from recalld.core.scored import Candidate, Scored
from recalld.wire.messages import Decay

NOW = 1_800_000_000_000
CLASSES: tuple[Decay, ...] = get_args(Decay)


def memory(n: int, age_days: float = 0, kind: str = "fact", **fields: Any) -> Candidate:
    return Candidate(n, n, kind, None, f"text {n}", NOW - int(age_days * DAY_MS), None, [], **fields)


def scored(n: int, score: float, age_days: float = 0, **fields: Any) -> Scored:
    return Scored(memory(n, age_days, **fields), score, {"lexical": score, "window": 0.0})


def choose(ranked: list[Scored], settings: RecallSettings) -> list[Scored]:
    return module.choose(ranked, settings, {}, {}, Recent())


def ids(found: list[Scored]) -> list[int]:
    return [one.memory.id for one in found]


def ordered(*found: Scored, priors: dict[str, float] | None = None) -> list[int]:
    return ids(adjust(found, NOW, priors or {}))


# -- bonuses


@given(
    st.sampled_from(CLASSES),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(-DAY_MS, 50 * 365 * DAY_MS),
)
def test_the_bonuses_together_stay_within_the_band(
    decay: Decay, importance: float, confidence: float, age_ms: int
) -> None:
    one = scored(1, 0.5, age_ms / DAY_MS, decay=decay, importance=importance, confidence=confidence)
    (found,) = adjust([one], NOW, {})
    bonus = [found.parts[name] for name in ("importance", "confidence", "recency", "source")]
    assert abs(sum(bonus)) <= BAND + 1e-9
    assert found.score == 0.5
    assert found.parts["lexical"] == 0.5


def test_near_equals_are_ordered_by_importance_confidence_and_recency() -> None:
    assert ordered(scored(1, 0.7), scored(2, 0.7, importance=0.9)) == [2, 1]
    assert ordered(scored(1, 0.7, confidence=0.5), scored(2, 0.7)) == [2, 1]
    assert ordered(scored(1, 0.7, 300), scored(2, 0.7, 1)) == [2, 1]
    assert ordered(scored(1, 0.7), scored(2, 0.7)) == [1, 2]


def test_a_fact_of_two_years_ago_that_answers_is_before_fresh_chatter() -> None:
    chatter = [scored(n, 0.6, 0, importance=1.0) for n in range(2, 30)]
    assert ordered(scored(1, 0.7, 730, importance=0.3, confidence=0.7), *chatter)[0] == 1


def test_age_tells_by_class_and_never_more_than_its_share() -> None:
    for decay, days in HALF_LIFE_DAYS.items():
        assert recency(decay, 0) == 0
        half = recency(decay, int(days * DAY_MS))
        assert recency(decay, int(2 * days * DAY_MS)) == pytest.approx(1.5 * half)
        assert recency(decay, 10**15) == pytest.approx(2 * half)
    assert recency("permanent", 10**15) == 0
    at_a_week = [recency(decay, 7 * DAY_MS) for decay in CLASSES]
    assert all(slower > faster for slower, faster in pairwise(at_a_week))
    assert recency("short", -5 * DAY_MS) == 0  # a clock that was set back


# -- sources


@pytest.mark.parametrize(
    ("source", "prior"),
    [
        ("/home/ada/memory/drafts/2026.md", -0.15),
        ("drafts/plan.md", -0.15),
        ("memory/draft-plan.md", -0.15),
        ("out/raw/page.html", -0.15),
        ("MEMORY.md", 0.05),
        ("wiki/boats.md", 0.05),
        ("notes/drafts/boats.md", -0.15),
        ("src/main.py", 0.0),
    ],
)
def test_a_source_has_its_prior(source: str, prior: float) -> None:
    assert source_prior(memory(1, source=source), SOURCE_PRIORS) == prior


def test_a_note_without_a_path_is_a_curated_one() -> None:
    assert source_prior(memory(1, kind="note"), SOURCE_PRIORS) == 0.05
    assert source_prior(memory(1, kind="turn"), SOURCE_PRIORS) == 0.0
    assert source_prior(memory(1, kind="note"), {"note": -0.2}) == -0.2


def test_a_draft_goes_behind_but_not_below_the_floor() -> None:
    settings = RecallSettings(floor=0.5)
    found = adjust([scored(1, 0.6, source="drafts/a.md"), scored(2, 0.52)], NOW, settings.source_priors)
    assert ids(choose(found, settings)) == [2, 1]
    assert found[1].parts["source"] == -0.15


def test_the_floor_is_decided_on_relevance_alone() -> None:
    settings = RecallSettings(floor=0.5)
    found = adjust([scored(1, 0.49, importance=1.0), scored(2, 0.5, 3_000, importance=0.0)], NOW, {})
    assert ids(choose(found, settings)) == [2]


# -- what stands


def test_what_was_superseded_or_has_expired_never_comes_and_what_is_pinned_does_not_expire() -> None:
    assert ordered(
        scored(1, 0.9, superseded_by=5),
        scored(2, 0.9, expires_ms=NOW),
        scored(3, 0.9, expires_ms=NOW + 1),
        scored(4, 0.9, expires_ms=1, pinned=True),
        scored(5, 0.9, superseded_by=9, pinned=True),
    ) == [3, 4]


def test_a_successor_takes_the_place_of_what_it_supersedes() -> None:
    found = [scored(1, 0.9, superseded_by=7), scored(2, 0.5), scored(3, 0.8, superseded_by=7), scored(4, 0.7)]
    after = adjust(succeeded(found, {1: memory(7), 3: memory(7)}), NOW, {})
    assert [(one.memory.id, one.score, one.via) for one in after] == [
        (7, 0.9, "supersedes m1"),
        (4, 0.7, ""),
        (2, 0.5, ""),
    ]
    assert memory_of(after[0]).via == "supersedes m1"


def test_a_successor_that_was_found_itself_keeps_the_better_score() -> None:
    assert [one.score for one in succeeded([scored(1, 0.6, superseded_by=7), scored(7, 0.8)], {1: memory(7)})] == [0.8]
    assert [one.score for one in succeeded([scored(1, 0.8, superseded_by=7), scored(7, 0.6)], {1: memory(7)})] == [0.8]


def test_what_was_superseded_by_something_that_is_gone_is_gone_too() -> None:
    assert adjust(succeeded([scored(1, 0.9, superseded_by=7)], {}), NOW, {}) == []


# -- directives


def test_what_a_directive_asks_for_stands_at_the_floor() -> None:
    settings = RecallSettings(floor=0.5)
    found = adjust([scored(1, 0.6), scored(2, 0.1), scored(3, 0.4)], NOW, {}, {2: "1"}, settings.floor)
    chosen = choose(found, settings)
    assert [(one.memory.id, one.score, one.via) for one in chosen] == [(1, 0.6, ""), (2, 0.1, "directive 1")]
    assert chosen[1].parts["directive"] == 0.4


# -- links


def test_links_are_followed_from_both_ends_by_the_best_partner() -> None:
    chosen = [scored(1, 0.9), scored(2, 0.8)]
    links = [(2, 5, "part_of"), (5, 1, "depends_on"), (1, 2, "related_to"), (6, 2, "caused_by"), (1, 7, "supersedes")]
    partners = linked_to(chosen, links)
    assert {i: (one.memory.id, kind) for i, (one, kind) in partners.items()} == {
        5: (1, "depends_on"),
        6: (2, "caused_by"),
    }
    found = joined(partners, [memory(5), memory(6)], NOW)
    assert [(one.memory.id, one.score, one.via) for one in found] == [
        (5, round(LINK_SHARE * 0.9, 4), "depends_on m1"),
        (6, round(LINK_SHARE * 0.8, 4), "caused_by m2"),
    ]
    assert memory_of(found[0]).lexical == 0


def test_a_linked_memory_takes_what_is_left_and_no_more() -> None:
    partners = linked_to([scored(1, 0.9)], [(1, n, "related_to") for n in range(2, 20)])
    assert len(joined(partners, [memory(n) for n in range(2, 20)], NOW)) == LINKED_MAX
    settings = RecallSettings(floor=0.8, items_max=2)
    linked = joined(partners, [memory(2)], NOW)
    assert ids(choose([scored(1, 0.9), *linked], settings)) == [1, 2]
    assert ids(choose([scored(1, 0.9), scored(3, 0.85), *linked], settings)) == [1, 3]


def test_a_linked_memory_that_does_not_stand_does_not_come() -> None:
    partners = linked_to([scored(1, 0.9)], [(1, 2, "part_of"), (1, 3, "part_of")])
    assert joined(partners, [memory(2, superseded_by=9), memory(3, expires_ms=NOW)], NOW) == []
