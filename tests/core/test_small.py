"""Scope, gates, sequence, race, rank, words, facts: the small pure parts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recalld.core.extract import FACTS_MAX, extract
from recalld.core.gates import GateSettings, capture_gate, length_gate, recall_gate
from recalld.core.query import Query
from recalld.core.race import Race
from recalld.core.scope import Scope, scope_of
from recalld.core.sequence import Offer, Source
from recalld.core.words import terms
from recalld.wire.messages import UNACKED_MAX, Ctx

# -- scope and gates


def scope(**ctx: str) -> Scope | None:
    return scope_of(Ctx(**ctx), {})


def test_the_session_key_names_the_agent() -> None:
    assert scope(agent_id="agent", session_key="agent:Ops-1:main") == scope(session_key="agent:Ops-1:main")
    found = scope(agent_id="main", session_id="s")
    assert found is not None
    assert (found.agent, found.namespace, found.session) == ("main", "main", "s")


def test_no_agent_no_scope() -> None:
    assert scope(session_key="chat") is None
    assert scope() is None
    assert scope(agent_id="") is None


def test_a_namespace_is_shared_only_by_configuration() -> None:
    shared = scope_of(Ctx(agent_id="a", session_id="s"), {"a": "team"})
    assert shared is not None
    assert shared.namespace == "team"
    assert scope_of(Ctx(agent_id="b", session_id="s"), {"a": "team"}) != shared


@pytest.mark.parametrize(
    ("ctx", "reason"),
    [
        ({"session_key": "agent:a:main"}, None),
        ({"session_key": "agent:a:telegram:direct:7"}, None),
        ({"session_key": "agent:a:telegram:group:7"}, "chat_type"),
        ({"session_key": "agent:a:slack:channel:7:thread:1"}, "chat_type"),
        ({"session_key": "agent:a:main", "chat_type": "group"}, "chat_type"),
        ({"session_key": "agent:a:subagent:1-2"}, "subagent"),
        ({"session_key": "agent:a:cron:job"}, "cron"),
        ({"agent_id": "a", "session_key": "harness:x"}, "internal"),
        ({"agent_id": "a", "session_key": "dreaming-narrative-rem-1"}, "internal"),
        ({"session_key": "agent:a:x:memory-capture:a"}, "internal"),
        ({"session_key": "agent:a:main", "trigger": "heartbeat"}, "trigger"),
        ({"session_key": "agent:a:main", "trigger": "user"}, None),
        ({"session_key": "agent:a:main", "provenance": "inter_session"}, "provenance"),
        ({"session_key": "agent:a:main", "provenance": "external_user"}, None),
        ({"agent_id": "a"}, "unknown_scope"),
        ({"session_key": "chat"}, "unknown_scope"),
    ],
)
def test_place_gates(ctx: dict[str, str], reason: str | None) -> None:
    c = Ctx(**ctx)
    assert recall_gate(scope_of(c, {}), c, "where is my bicycle?", GateSettings()) == reason
    assert capture_gate(scope_of(c, {}), c, "my bicycle is in the cellar", "noted", GateSettings()) == reason


def test_text_gates() -> None:
    c = Ctx(session_key="agent:a:main")
    s = scope_of(c, {})
    settings = GateSettings()
    assert recall_gate(s, c, "", settings) == "empty"
    assert length_gate(Query("ok"), settings) == "too_short"
    for control in ("/new", "/status now", "HEARTBEAT_OK", "NO_REPLY."):
        assert recall_gate(s, c, control, settings) == "control_text"
        assert capture_gate(s, c, control, "done", settings) == "control_text"
    assert recall_gate(s, c, "/home/me is full, what now?\nhelp", settings) is None
    assert capture_gate(s, c, "", "", settings) == "empty"
    assert recall_gate(s, c, "hello there", GateSettings(recall=False)) == "disabled"
    assert capture_gate(s, c, "hello there", "", GateSettings(capture=False)) == "disabled"
    assert recall_gate(s, c, "hello there", GateSettings(agents=("b",))) == "agent"


# -- sequence


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_a_source_settles_each_seq_once_whatever_the_order(seed: int, n: int) -> None:
    rng = random.Random(seed)
    source = Source()
    sent = [s for s in range(1, n + 1) for _ in range(rng.randint(1, 3))]
    rng.shuffle(sent)
    stored: set[int] = set()
    for seq in sent:
        offer = source.offer(seq)
        assert (offer is Offer.NEW) == (seq not in stored)
        if offer is Offer.NEW:
            if rng.random() < 0.2:
                source.failed(seq)
                assert source.offer(seq) is Offer.NEW
            assert source.offer(seq) is Offer.UNDERWAY
            source.stored(seq)
            stored.add(seq)
        expected = next(i for i in range(n + 1) if i + 1 not in stored)
        assert source.upto == expected
        assert source.highest == max(stored)
    assert source.upto == n
    assert source.above == set()


def test_what_the_sender_gave_up_is_settled_and_counted() -> None:
    source = Source()
    for seq in (1, 2, 6):
        source.offer(seq)
        source.stored(seq)
    source.settle_below(5)
    assert (source.upto, source.given_up, source.highest) == (4, 2, 6)
    source.settle_below(3)
    assert source.upto == 4
    source.offer(5)
    source.stored(5)
    assert source.upto == 6


def test_a_gap_that_nobody_fills_is_given_up_in_the_end() -> None:
    source = Source()
    for seq in range(2, UNACKED_MAX + 3):
        source.offer(seq)
        source.stored(seq)
    assert (source.upto, source.given_up) == (UNACKED_MAX + 2, 1)


# -- race


def test_both_lanes_finish_a_question_and_the_cutoff_finishes_what_is_left() -> None:
    race: Race[str, int] = Race(("a", "b"))
    assert race.start("k1", "q1", 1.0)
    assert race.start("k2", "q2", 2.0)
    assert not race.start("k1", "again", 9.0)
    assert race.result("k1", "a", 5) is None
    done = race.result("k1", "b", None)
    assert done is not None
    assert done.late(race.lanes) == ("b",)
    assert race.result("k1", "a", 6) is None
    assert race.next_cutoff() == 2.0
    race.result("k2", "b", 7)
    assert race.due(1.9) == []
    (late,) = race.due(2.0)
    assert (late.question, late.results, late.late(race.lanes)) == ("q2", {"b": 7}, ("a",))
    assert race.result("k2", "a", 1) is None
    assert len(race) == 0
    assert race.next_cutoff() is None


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["start", "x", "y", "due"]), st.integers(0, 5)), max_size=60
    )
)
def test_every_question_is_finished_exactly_once(steps: list[tuple[str, str, int]]) -> None:
    race: Race[int, int] = Race(("x", "y"))
    started: list[int] = []
    finished: list[int] = []
    for n, (key, what, at) in enumerate(steps):
        if what == "start":
            if race.start(key, n, float(at)):
                started.append(n)
        elif what == "due":
            finished += [r.question for r in race.due(float(at))]
        elif (runner := race.result(key, what, 1)) is not None:
            finished.append(runner.question)
    finished += [r.question for r in race.due(float("inf"))]
    assert sorted(finished) == started


# -- words and rank


def test_terms() -> None:
    assert terms("The Cats' running, don't STOP! Zoë’s") == ["the", "cat", "run", "don", "stop", "zoë"]
    assert terms("我喜欢跑步 abc") == ["我喜", "喜欢", "欢跑", "跑步", "abc"]
    assert terms("x" * 65 + " ok") == ["ok"]
    assert terms("") == []


# -- facts


def test_facts_with_their_category() -> None:
    text = (
        "I live in Bergen. My favourite fruit is quince! I've decided to take the night train. "
        "Do I need a passport? Never book aisle seats for me. I'm going to visit Oslo in May. "
        "She said I love cats. My email is ada@example.org. If I moved, would it help?"
    )
    found = {f.text: f.category for f in extract(text, "Ada")}
    assert found == {
        "Ada: I live in Bergen.": "fact",
        "Ada: My favourite fruit is quince!": "preference",
        "Ada: I've decided to take the night train.": "decision",
        "Ada: Never book aisle seats for me.": "rule",
        "Ada: I'm going to visit Oslo in May.": "plan",
        "Ada: My email is ada@example.org.": "entity",
    }
    assert extract("The weather was fine. What a day!", "Ada") == []
    assert len(extract("\n".join(f"I own {n} houses in town." for n in range(50)), "Ada")) == FACTS_MAX
