"""What those who ask the same have from each other: what was found a moment ago, and what is being searched for."""

from __future__ import annotations

from recalld.core.flight import Flights
from recalld.core.recent import ENTRIES_MAX, RecentlyFound
from recalld.core.scored import Candidate, Ranked, Scored, Verdict

RANKED = Ranked([Scored(Candidate(1, None, "note", None, "words", 0, None, []), 0.9, {"lexical": 0.5})])


def test_what_was_found_holds_until_its_time_or_a_write() -> None:
    recent = RecentlyFound[str]()
    recent.put("k", "found", 7, until=15.0)
    assert recent.get("k", 7, 14.9) == "found"
    assert recent.get("other", 7, 14.9) is None
    assert recent.get("k", 8, 14.9) is None
    recent.put("k", "found", 8, until=15.0)
    assert recent.get("k", 8, 15.0) is None
    assert len(recent) == 0


def test_verdicts_are_each_askers_own() -> None:
    first, second = RANKED.undecided(), RANKED.undecided()
    first.memories[0].verdict = Verdict.BUDGET
    assert (second.memories[0].verdict, RANKED.memories[0].verdict) == ("", "")
    assert second == RANKED


def test_what_does_not_stand_is_told_after_the_rest() -> None:
    old = Candidate(2, None, "note", None, "words", 0, None, [], superseded_by=1)
    late = Candidate(3, None, "note", None, "words", 0, None, [], expires_ms=5)
    ranked = Ranked([Scored(old, 0.9), *RANKED.undecided().memories, Scored(late, 0.8)])
    ordered = ranked.in_order(RANKED.undecided().memories)
    assert [scored.memory.id for scored in ordered.memories] == [1]
    assert [(c.id, c.verdict) for c in ordered.judged({1})] == [(1, "injected"), (2, "superseded"), (3, "expired")]


def test_the_oldest_goes_where_there_are_too_many() -> None:
    recent = RecentlyFound[str]()
    for n in range(ENTRIES_MAX + 1):
        recent.put(n, "found", 1, until=15.0)
    assert len(recent) == ENTRIES_MAX
    assert recent.get(0, 1, 0.0) is None
    assert recent.get(ENTRIES_MAX, 1, 0.0) is not None


def test_a_flight_takes_who_asks_the_same_until_it_has_landed() -> None:
    flights: Flights[str, int] = Flights(("a", "b"))
    flight = flights.begin("k", "first", 1, until=5.0)
    assert flights.join("k", "second", 1, 0.0, 9.0) is flight
    assert flight.until == 9.0
    assert flights.join("other", "third", 1, 0.0, 9.0) is None
    assert flights.landed(flight, "a", 1) == ["first", "second"]
    assert flights.join("k", "third", 1, 0.0, 2.0) is flight
    assert (flight.found, flight.until) == ({"a": 1}, 9.0)
    assert flights.landed(flight, "b", None) == ["first", "second", "third"]
    assert flights.join("k", "fourth", 1, 0.0, 9.0) is None


def test_no_flight_is_joined_after_a_write_or_after_it_may_have_been_given_up() -> None:
    flights: Flights[str, int] = Flights(("a", "b"))
    old = flights.begin("k", "first", 1, until=5.0)
    assert flights.join("k", "second", 2, 0.0, 9.0) is None
    new = flights.begin("k", "second", 2, until=5.0)
    flights.landed(old, "a", 1)
    flights.landed(old, "b", 1)
    assert flights.join("k", "third", 2, 5.0, 9.0) is None
    assert flights.join("k", "third", 2, 4.9, 9.0) is new


def test_a_flight_without_a_key_is_shared_with_nobody() -> None:
    flights: Flights[str, int] = Flights(("a",))
    flight = flights.begin(None, "first", 1, until=5.0)
    assert flights.join(None, "second", 1, 0.0, 9.0) is None
    assert flights.landed(flight, "a", 1) == ["first"]
