"""Who is served: chats by their ids, a person's toggle, control text by configuration, short questions."""

from __future__ import annotations

import pytest

from recalld.core.gates import GateSettings, capture_gate, length_gate, recall_gate
from recalld.core.query import Query
from recalld.core.scope import scope_of
from recalld.wire.messages import Ctx


def reasons(ctx: Ctx, settings: GateSettings, *, toggled_off: bool = False) -> set[str | None]:
    """What recall and capture say of the same place."""
    scope = scope_of(ctx, {})
    return {
        recall_gate(scope, ctx, "where is my bicycle?", settings, toggled_off=toggled_off),
        capture_gate(scope, ctx, "it is in the cellar", "noted", settings, toggled_off=toggled_off),
    }


def chats(key: str = "agent:a:main", chat_id: str | None = None) -> tuple[str, ...]:
    scope = scope_of(Ctx(session_key=key, chat_id=chat_id), {})
    assert scope is not None
    return scope.chats


@pytest.mark.parametrize("trigger", ["heartbeat", "cron", "memory", "overflow", "something new"])
def test_only_turns_that_a_person_started(trigger: str) -> None:
    assert reasons(Ctx(session_key="agent:a:main", trigger=trigger), GateSettings()) == {"trigger"}


@pytest.mark.parametrize("trigger", [None, "", "user", "manual"])
def test_turns_that_a_person_started(trigger: str | None) -> None:
    assert reasons(Ctx(session_key="agent:a:main", trigger=trigger), GateSettings()) == {None}


@pytest.mark.parametrize("provenance", ["inter_session", "internal_system"])
def test_only_prompts_that_a_person_wrote(provenance: str) -> None:
    assert reasons(Ctx(session_key="agent:a:main", provenance=provenance), GateSettings()) == {"provenance"}


@pytest.mark.parametrize(
    "key", ["agent:a:harness:1", "internal-session-effects:1", "agent:a:dreaming-narrative-deep-1", "x:active-memory:y"]
)
def test_sessions_of_the_hosts_own(key: str) -> None:
    assert reasons(Ctx(agent_id="a", session_key=key), GateSettings()) == {"internal"}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("agent:a:main", ()),
        ("agent:a:main:thread:7", ()),
        ("agent:a:direct:7", ("7",)),
        ("agent:a:telegram:direct:7", ("7",)),
        ("agent:a:telegram:work:dm:7", ("7",)),
        ("agent:a:telegram:group:-1001", ("-1001",)),
        ("agent:a:telegram:group:-1001:topic:5", ("-1001", "-1001:topic:5")),
        ("agent:a:slack:channel:C07:thread:17.4", ("c07", "c07:thread:17.4")),
        ("agent:a:matrix:room:!aBc:example.org:thread:$e", ("!abc:example.org", "!abc:example.org:thread:$e")),
        ("agent:a:subagent:1-2", ()),
        ("chat", None),
    ],
)
def test_the_chat_of_a_session_key(key: str, expected: tuple[str, ...] | None) -> None:
    scope = scope_of(Ctx(session_key=key), {})
    assert (scope.chats if scope is not None else None) == expected


def test_the_hosts_own_word_for_a_chat_goes_before_the_key() -> None:
    key = "agent:a:telegram:group:-1001:topic:5"
    assert chats(key, "-2002") == ("-2002", "-2002:topic:5")
    assert chats(key, "-2002:topic:6") == ("-2002", "-2002:topic:6")
    assert chats(key, "") == ("-1001", "-1001:topic:5")
    assert chats("agent:a:main", " C07 ") == ("c07",)


GROUP = Ctx(session_key="agent:a:telegram:group:-1001:topic:5")
GROUPS = ("direct", "group")


@pytest.mark.parametrize(
    ("allow", "deny", "reason"),
    [
        ((), (), None),
        (("-1001",), (), None),
        (("-1001:topic:5",), (), None),
        (("-1001:topic:6",), (), "chat_not_allowed"),
        (("7",), (), "chat_not_allowed"),
        ((), ("-1001",), "chat_denied"),
        ((), ("-1001:topic:5",), "chat_denied"),
        ((), ("-1001:topic:6", "7"), None),
        (("-1001",), ("-1001",), "chat_denied"),
        (("-1001",), ("-1001:topic:5",), "chat_denied"),
    ],
)
def test_lists_of_chats_and_deny_wins(allow: tuple[str, ...], deny: tuple[str, ...], reason: str | None) -> None:
    settings = GateSettings(chat_types=GROUPS, chats_allow=allow, chats_deny=deny)
    assert reasons(GROUP, settings) == {reason}


def test_a_chat_that_is_not_known_is_not_allowed_and_not_denied() -> None:
    ctx = Ctx(session_key="agent:a:main")
    assert reasons(ctx, GateSettings(chats_allow=("7",))) == {"chat_not_allowed"}
    assert reasons(ctx, GateSettings(chats_deny=("7",))) == {None}


def test_ids_of_chats_match_in_any_case() -> None:
    ctx = Ctx(session_key="agent:a:slack:direct:u0ab", chat_id=None)
    assert reasons(ctx, GateSettings(chats_deny=(" U0AB",))) == {"chat_denied"}


def test_a_list_does_not_open_a_kind_of_chat() -> None:
    assert reasons(GROUP, GateSettings(chats_allow=("-1001",))) == {"chat_type"}


def test_toggled_off() -> None:
    assert reasons(Ctx(session_key="agent:a:main"), GateSettings(), toggled_off=True) == {"toggled_off"}
    assert reasons(Ctx(), GateSettings(), toggled_off=True) == {"unknown_scope"}


def test_control_text_by_configuration() -> None:
    ctx = Ctx(session_key="agent:a:main")
    scope = scope_of(ctx, {})
    settings = GateSettings(control_patterns=(r"(?i)beep\b.*", r"Read HEARTBEAT\.md[\s\S]*"))
    for text in ("beep boop", "BEEP", "Read HEARTBEAT.md if it exists.\nElse reply."):
        assert recall_gate(scope, ctx, text, settings) == "control_text"
        assert capture_gate(scope, ctx, text, "done", settings) == "control_text"
        assert recall_gate(scope, ctx, text, GateSettings()) is None
    assert recall_gate(scope, ctx, "what does beep mean?", settings) is None
    assert capture_gate(scope, ctx, "", "beep", settings) == "control_text"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (Query("why?", "I sold the boat."), None),
        (Query("为什么？", "I sold the boat."), None),
        (Query("why?"), "too_short"),
        (Query("ok", "I sold the boat."), "too_short"),
        (Query("where"), None),
    ],
)
def test_a_short_prompt_is_worth_a_search_where_it_asks_about_what_was_said(query: Query, reason: str | None) -> None:
    assert length_gate(query, GateSettings()) == reason
