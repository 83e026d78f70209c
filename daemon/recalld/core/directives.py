"""Retrieval directives: what a person wants offered beside what was searched, and for which prompts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Annotated

from msgspec import Meta, Struct

from recalld.core.words import terms

TASK_TERMS = 12  # what a prompt wants done stands at its beginning

Phrase = Annotated[str, Meta(min_length=1, max_length=128)]
Phrases = Annotated[tuple[Phrase, ...], Meta(max_length=32)]


class When(Struct, frozen=True, forbid_unknown_fields=True):
    """One of these is enough. `keywords`: words or phrases anywhere in the prompt. `entities`: names in it, or `*` for any
    entity that is known. `tasks`: words among its first TASK_TERMS. `session_start`: a session's first prompt."""

    keywords: Phrases = ()
    entities: Phrases = ()
    tasks: Phrases = ()
    session_start: bool = False


class Then(Struct, frozen=True, forbid_unknown_fields=True):
    """One of: the memories that have at least half of the words of `query`; the newest of `entity`; of `category`."""

    query: Annotated[str, Meta(max_length=512)] = ""
    entity: Annotated[str, Meta(max_length=128)] = ""
    category: Annotated[str, Meta(max_length=64)] = ""


class Directive(Struct, frozen=True, forbid_unknown_fields=True):
    when: When
    then: Then
    limit: Annotated[int, Meta(ge=1, le=16)] = 3

    def __post_init__(self) -> None:
        if self.when == When():
            raise ValueError("`when` is empty: give it keywords, entities, tasks or session_start = true")
        if sum(map(bool, (self.then.query, self.then.entity, self.then.category))) != 1:
            raise ValueError("`then` needs exactly one of query, entity and category")


def matching(
    directives: Iterable[Directive], prompt_terms: Sequence[str], named: Collection[str], *, first: bool
) -> list[tuple[int, Directive]]:
    """(number from 1, directive) of those that match a prompt, in their order.

    `named`: the known entities in the prompt. `first`: it is its session's first.
    """
    return [
        (number, directive)
        for number, directive in enumerate(directives, 1)
        if _matches(directive.when, prompt_terms, named, first=first)
    ]


def _matches(when: When, prompt_terms: Sequence[str], named: Collection[str], *, first: bool) -> bool:
    return (
        (when.session_start and first)
        or any(_holds(prompt_terms, phrase) for phrase in when.keywords)
        or any(_holds(prompt_terms[:TASK_TERMS], phrase) for phrase in when.tasks)
        or any(bool(named) if name == "*" else _holds(prompt_terms, name) for name in when.entities)
    )


def _holds(prompt_terms: Sequence[str], phrase: str) -> bool:
    wanted = _terms_of(phrase)
    if not wanted or wanted[0] not in prompt_terms:
        return False
    return any(tuple(prompt_terms[i : i + len(wanted)]) == wanted for i in range(len(prompt_terms) - len(wanted) + 1))


@lru_cache(maxsize=1_024)
def _terms_of(phrase: str) -> tuple[str, ...]:
    return tuple(terms(phrase))


def covers(query: str, memory_terms: Collection[str]) -> bool:
    """Whether a memory has at least half of a directive's words."""
    wanted = set(_terms_of(query))
    return bool(wanted) and 2 * len(wanted.intersection(memory_terms)) >= len(wanted)
