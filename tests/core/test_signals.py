"""Payloads of any shape: a host's field of the wrong type is read as left out, never an error."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recalld.core.scope import scope_of
from recalld.core.signals import KINDS, distil, last_turn, text_of
from recalld.wire.messages import Ctx, Event

CTX = Ctx(session_key="agent:a:main", run_id="r")
SCOPE = scope_of(CTX, {})
FIELDS = ("prompt", "content", "messages", "assistantTexts", "lastAssistant", "success", "error", "sessionFile", "runId", "role", "type", "text", "stopReason", "errorMessage")  # fmt: skip  # noqa: E501

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=25,
)


def event(type_: str, payload: dict[str, Any]) -> Event:
    return Event(v=1, type=type_, id="1", src="s", ts=1, seq=1, ctx=CTX, event=payload)


@given(st.sampled_from(sorted(KINDS)), st.dictionaries(st.sampled_from(FIELDS), anything))
def test_no_payload_is_an_error(type_: str, payload: dict[str, Any]) -> None:
    signal = distil(event(type_, payload), SCOPE, 5)
    assert signal is not None
    assert isinstance(signal.user, str)
    assert isinstance(signal.assistant, str)
    assert signal.failure in (None, "failed", "aborted")


def test_content_is_text_or_text_blocks() -> None:
    assert text_of("hi") == "hi"
    assert (
        text_of([{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}, "x", None]) == "a\nb"
    )
    assert text_of({"type": "text", "text": "a"}) == ""
    assert text_of(None) == ""


def test_a_history_is_reduced_to_its_last_turn() -> None:
    history = [
        {"role": "user", "content": "old"},
        {"role": "assistant", "content": "old answer"},
        {"role": "user", "content": "new"},
        {"role": "assistant", "content": [{"type": "toolCall", "name": "ls"}]},
        {"role": "toolResult", "content": "secret listing"},
        {"role": "assistant", "content": [{"type": "text", "text": "done"}]},
    ]
    user, answers = last_turn(history)
    assert user == history[2]
    assert answers == [history[3], history[5]]
    signal = distil(event("agent_end", {"messages": history, "success": True}), SCOPE, 5)
    assert signal is not None
    assert (signal.user, signal.assistant, signal.failure) == ("new", "done", None)


@pytest.mark.parametrize(
    ("payload", "failure"),
    [
        ({"success": True, "messages": [{"role": "assistant", "content": "", "stopReason": "error"}]}, "failed"),
        ({"success": True, "messages": [{"role": "assistant", "content": "", "errorMessage": "500"}]}, "failed"),
        ({"success": False, "messages": [{"role": "assistant", "content": "", "stopReason": "aborted"}]}, "aborted"),
        ({"success": False, "messages": []}, "aborted"),
        ({"success": False, "error": "boom", "messages": []}, "failed"),
        ({"success": True, "messages": [{"role": "assistant", "content": "ok", "stopReason": "stop"}]}, None),
    ],
)
def test_failure_is_read_from_the_last_message_whatever_success_says(
    payload: dict[str, Any], failure: str | None
) -> None:
    signal = distil(event("agent_end", payload), SCOPE, 5)
    assert signal is not None
    assert signal.failure == failure


def test_what_means_nothing_to_a_turn_gives_no_signal() -> None:
    assert distil(event("session_start", {}), SCOPE, 5) is None
    assert distil(event("llm_input", {"prompt": "x"}), None, 5) is None
    stop = distil(event("gateway_stop", {}), None, 5)
    assert stop is not None
    assert stop.session is None
