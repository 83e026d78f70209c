"""What is searched for a prompt: when what was said before is needed, how much of it is taken, and never an injection."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recalld.core.query import RAW_CHARS_MAX, Query, QuerySettings, Said, build, history, stands_alone, wants_context
from recalld.wire.messages import QUERY_CHARS_MAX

RECENT = QuerySettings(query_mode="recent")
FULL = QuerySettings(query_mode="full")


def talk(*texts: str) -> list[dict[str, Any]]:
    """A history of user and assistant in turn, oldest first."""
    return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]


def asked(prompt: str, messages: list[Any], settings: QuerySettings = RECENT) -> Query:
    return build(prompt, history(messages), settings, lambda text: text == "HEARTBEAT_OK")


# -- whether a prompt stands alone


@pytest.mark.parametrize(
    "prompt",
    [
        "and what about her?",
        "why?",
        "Why not?",
        "how did it go?",
        "what about the second one?",
        "What about Maria?",
        "when did she move there?",
        "Where is her bicycle?",
        "And the blue one?",
        "who told you that?",
        "tell me more",
        "yes please",
        "in Bergen?",
        "warum?",
        "¿y ella?",
        "为什么？",
        "🙂",
    ],
)
def test_a_prompt_that_cannot_stand_alone(prompt: str) -> None:
    assert not stands_alone(prompt)
    assert wants_context(prompt, QuerySettings())


@pytest.mark.parametrize(
    "prompt",
    [
        "Where is my bicycle?",
        "Who is Maria?",
        "When does my train leave?",
        "What is the name of that book about sailing?",
        "Is it raining in Oslo tomorrow?",
        "What is my favourite colour?",
        "¿Dónde está mi bicicleta?",
        "我的自行车在哪里",
        "thanks",
        "Thank you very much!",
        "and she told them about it " * 10,
        "x" * 9_000,
    ],
)
def test_a_prompt_that_says_itself_what_it_is_about(prompt: str) -> None:
    assert stands_alone(prompt)
    assert not wants_context(prompt, QuerySettings())


def test_other_modes_always_want_context() -> None:
    assert wants_context("Where is my bicycle?", RECENT)
    assert wants_context("Where is my bicycle?", FULL)


# -- how much is taken


def test_recent_is_two_turns_of_the_user_and_one_of_the_assistant_in_their_order() -> None:
    messages = talk("one", "two", "three", "four", "five", "six")
    assert asked("now?", messages) == Query("now?", "three\nfive\nsix")
    settings = QuerySettings(query_mode="recent", recent_user_turns=0, recent_assistant_turns=3)
    assert asked("now?", messages, settings).context == "two\nfour\nsix"
    settings = QuerySettings(query_mode="recent", recent_user_turns=0, recent_assistant_turns=0)
    assert asked("now?", messages, settings).context == ""


def test_each_turn_is_bounded() -> None:
    user, assistant = asked("now?", talk("u" * 5_000, "a" * 5_000)).context.split("\n")
    assert (len(user), len(assistant)) == (220, 180)
    settings = QuerySettings(query_mode="recent", recent_user_chars=40, recent_assistant_chars=1_000)
    user, assistant = asked("now?", talk("u" * 5_000, "a" * 5_000), settings).context.split("\n")
    assert (len(user), len(assistant)) == (40, 1_000)


def test_full_is_all_there_is() -> None:
    assert asked("now?", talk("one", "two", "three", "four", "five", "six"), FULL).context == (
        "one\ntwo\nthree\nfour\nfive\nsix"
    )


@given(st.integers(0, QUERY_CHARS_MAX), st.lists(st.integers(1, 30_000), max_size=40), st.sampled_from([RECENT, FULL]))
def test_the_whole_has_a_hard_bound(prompt_chars: int, sizes: list[int], settings: QuerySettings) -> None:
    query = asked("p" * prompt_chars, talk(*("x" * size for size in sizes)), settings)
    assert len(query.text) == prompt_chars
    assert len(query.text) + len(query.context) <= QUERY_CHARS_MAX


def test_a_long_history_is_read_from_its_end_and_no_further_than_needed() -> None:
    read = 0

    def endless() -> Any:
        nonlocal read
        while True:
            read += 1
            yield Said("user", "<private>" + "x" * QUERY_CHARS_MAX)

    assert build("now?", endless(), FULL, lambda text: False).context == ""
    assert read <= RAW_CHARS_MAX // QUERY_CHARS_MAX + 2


def test_the_newest_are_kept_where_not_all_fit() -> None:
    context = asked("now?", talk(*(f"{n:02d}" + "x" * 2_998 for n in range(8))), FULL).context
    assert "07x" in context
    assert "06x" in context
    assert "00x" not in context


# -- what is never in it


def test_injected_blocks_do_not_come_back() -> None:
    injected = (
        "<relevant-memories>\n- [m1] the safe code is 77\n</relevant-memories>\n"
        "<active_memory_plugin>a summary</active_memory_plugin>\n"
        "[auto-recall]old things[/auto-recall]\n"
        'Sender (untrusted metadata):\n```json\n{"name": "Ada"}\n```\n'
        "<private>hush</private>I sold the boat."
    )
    assert asked("why?", talk(injected, injected)).context == "I sold the boat.\nI sold the boat."


def test_a_history_that_holds_the_prompt_already() -> None:
    messages = talk("I sold the boat.", "To whom?", "[Mon 2026-04-14 12:34 EDT] and why?")
    assert asked("and why?", messages).context == "I sold the boat.\nTo whom?"


def test_control_text_and_what_is_no_conversation_are_passed_over() -> None:
    messages: list[Any] = [
        *talk("I sold the boat.", "HEARTBEAT_OK"),
        {"role": "toolResult", "content": "tool"},
        {"role": "custom", "content": "custom"},
        {"role": "assistant", "content": [{"type": "toolCall", "name": "x"}]},
        {"role": "user", "content": 7},
        "nonsense",
        None,
    ]
    assert asked("why?", messages).context == "I sold the boat."


def test_of_an_answer_between_tool_calls_the_last_text_is_taken() -> None:
    messages = talk("Find my boat.", "Let me look.")
    messages += [{"role": "toolResult", "content": "{}"}, {"role": "assistant", "content": "It lies in Lisbon."}]
    settings = QuerySettings(query_mode="recent", recent_assistant_turns=3)
    assert asked("since when?", messages, settings).context == "Find my boat.\nIt lies in Lisbon."
