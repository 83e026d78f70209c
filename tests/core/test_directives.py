"""Which entities a prompt names, and which directives it meets."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from recalld.core import entities
from recalld.core.directives import TASK_TERMS, Directive, Then, When, covers, matching
from recalld.core.entities import NAMED_MAX, Entities
from recalld.core.words import terms


def known(*names: str) -> Entities:
    found = Entities()
    for name in names:
        assert found.add(name)
    return found


def test_a_prompt_names_entities_by_all_their_words_in_order() -> None:
    house = known("Project Atlas", "project atlas", "Ada Lovelace", "Atlas")
    assert house.named(terms("What is left to do in project Atlas?")) == ["Project Atlas", "project atlas", "Atlas"]
    assert house.named(terms("Lovelace, Ada")) == []
    assert house.named(terms("Ada Lovelace's letters")) == ["Ada Lovelace"]
    assert house.named(terms("ada")) == house.named([]) == []


def test_entities_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entities, "ENTITIES_MAX", 2)
    house = known("a1", "b1")
    assert house.add("a1")
    assert not house.add("c1")
    assert len(house) == 2
    monkeypatch.undo()
    many = known(*(f"name{n}" for n in range(20)))
    assert len(many.named(terms(" ".join(f"name{n}" for n in range(20))))) == NAMED_MAX


def test_a_name_without_a_word_is_no_name() -> None:
    assert len(known("???")) == 0


def met(when: When, prompt: str, *, named: tuple[str, ...] = (), first: bool = False) -> bool:
    return bool(matching([Directive(when, Then(category="rule"))], terms(prompt), named, first=first))


def test_keywords_are_words_or_phrases_anywhere_in_whatever_form() -> None:
    when = When(keywords=("deploy", "go live"))
    assert met(when, "We were deploying it")
    assert met(when, "when do we go live?")
    assert not met(when, "live and let go")
    assert not met(when, "")


def test_a_task_stands_at_the_beginning() -> None:
    when = When(tasks=("review",))
    assert met(when, "Please review this change")
    assert not met(when, "word " * TASK_TERMS + "review")


def test_entities_by_name_or_any() -> None:
    assert met(When(entities=("Atlas",)), "what about Atlas")
    assert not met(When(entities=("Atlas",)), "what about it", named=("Ada",))
    assert met(When(entities=("*",)), "what about Ada", named=("Ada",))
    assert not met(When(entities=("*",)), "what about Ada")


def test_the_first_prompt_of_a_session() -> None:
    assert met(When(session_start=True), "hello", first=True)
    assert not met(When(session_start=True), "hello")


def test_directives_are_numbered_as_they_are_written() -> None:
    both = [Directive(When(keywords=(word,)), Then(category="rule")) for word in ("tea", "coffee", "cocoa")]
    assert [number for number, _ in matching(both, terms("cocoa or tea"), (), first=False)] == [1, 3]


def test_half_of_a_directives_words_are_enough() -> None:
    assert covers("deployment checklist", terms("the checklists"))
    assert not covers("deployment checklist for friday", terms("on friday"))
    assert not covers("", ["a"])


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ({"when": {}, "then": {"query": "x"}}, "`when` is empty"),
        ({"when": {"keywords": ["x"]}, "then": {}}, "exactly one of query, entity and category"),
        ({"when": {"keywords": ["x"]}, "then": {"query": "x", "entity": "y"}}, "exactly one of"),
        ({"when": {"keywords": ["x"]}, "then": {"query": "x"}, "limit": 0}, "limit"),
        ({"when": {"keyword": ["x"]}, "then": {"query": "x"}}, "keyword"),
    ],
)
def test_a_directive_that_says_nothing_is_refused(value: dict[str, Any], wanted: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=wanted):
        msgspec.convert(value, Directive)
