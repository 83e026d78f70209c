"""The text of the protocol says what the code says: its tables are read and compared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from recalld.core.query import MESSAGES_MAX, RAW_CHARS_MAX
from recalld.service.toggles import SESSIONS_MAX
from recalld.wire import messages
from recalld.wire.errors import FAULT, REMEDY, Code, ProtocolError
from recalld.wire.messages import ANSWERS, EVENT_TYPES, KEPT_TYPES, Ctx, Event, Limits, Request
from recalld.wire.operations import OPERATIONS


@pytest.fixture(scope="module")
def text(protocol: Path) -> str:
    return (protocol / "README.md").read_text(encoding="utf-8")


def section(text: str, number: int) -> str:
    start = text.index(f"\n## {number}. ")
    end = text.find(f"\n## {number + 1}. ")
    return text[start : None if end < 0 else end]


def rows(text: str, head: str) -> list[list[str]]:
    """The cells of the table whose first line starts with `| head |`, without its head and rule."""
    lines = text[text.index(f"| {head} |") :].splitlines()[2:]
    table = []
    for line in lines:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_code_has_a_fault_and_a_remedy() -> None:
    assert set(FAULT) == set(REMEDY) == set(Code)
    assert all(REMEDY.values())


def test_the_error_names_its_code() -> None:
    error = ProtocolError(Code.BUSY, "64 requests are waiting")
    assert (error.code, error.message, str(error)) == (Code.BUSY, "64 requests are waiting", "64 requests are waiting")


def test_the_table_of_errors(text: str) -> None:
    table = {quoted(code)[0]: fault for code, fault, _ in rows(section(text, 9), "code")}
    assert table == {code.value: fault.value for code, fault in FAULT.items()}


def test_no_other_code_is_named(text: str) -> None:
    assert set(re.findall(r"\bE_[A-Z_]*[A-Z]\b", text)) == {code.value for code in Code}


def test_the_table_of_event_types(text: str) -> None:
    kept = {name: cells[1] for cells in rows(section(text, 4), "type") for name in quoted(cells[0])}
    assert set(kept) == EVENT_TYPES
    assert {name for name, mark in kept.items() if mark == "yes"} == KEPT_TYPES
    assert set(kept.values()) == {"yes", "no"}


def test_the_answers_are_described(text: str) -> None:
    assert set(re.findall(r"^\*\*`([a-z_]+)`\*\*", section(text, 5), re.MULTILINE)) == set(ANSWERS)


def test_the_table_of_operations(text: str) -> None:
    table = {quoted(op)[0]: (params, result) for op, params, result in rows(section(text, 8), "op")}
    assert set(table) == set(OPERATIONS)
    for op, (params, _) in OPERATIONS.items():
        assert set(params.__struct_fields__) <= set(quoted(table[op][0])), op
    for op in ("search", "get", "store", "forget", "publish", "drain"):
        assert set(OPERATIONS[op][1].__struct_fields__) <= set(quoted(table[op][1])), op


@pytest.mark.parametrize(
    ("number", "struct"),
    [pytest.param(3, Event, id="event"), pytest.param(8, Request, id="request")],
)
def test_the_tables_of_envelopes(text: str, number: int, struct: type[Event] | type[Request]) -> None:
    table = {name: cells[1] for cells in rows(section(text, number), "field") for name in quoted(cells[0])}
    assert set(table) == set(struct.__struct_fields__)
    required = {name for name, bound in table.items() if bound.endswith(", required")}
    assert required == set(struct.__struct_fields__[: len(required)])


def test_the_table_of_ctx(text: str) -> None:
    part = section(text, 3)
    table = rows(part[part.index("`ctx` is what") :], "field")
    assert {name for cells in table for name in quoted(cells[0]) if name not in ("ctx",)} == set(Ctx.__struct_fields__)


def test_the_limits_of_the_welcome_are_named(text: str) -> None:
    (line,) = [cells[1] for cells in rows(section(text, 5), "field") if quoted(cells[0]) == ["limits"]]
    assert quoted(line) == list(Limits.__struct_fields__)


def test_the_table_of_limits(text: str) -> None:
    limits = {cells[0]: cells[1] for cells in rows(section(text, 10), "what")}
    assert limits.pop("a message") == f"{messages.MESSAGE_BYTES_MAX // 2**20} MiB"
    assert limits.pop("unacknowledged events of one `src`") == str(messages.UNACKED_MAX)
    assert limits.pop("`ttl_ms`") == f"1 to {messages.TTL_MS_MAX}, default {messages.TTL_MS_DEFAULT}"
    assert limits.pop("a stored text") == f"{messages.TEXT_CHARS_MAX} characters"
    assert limits.pop("a query").startswith(f"{messages.QUERY_CHARS_MAX} characters")
    assert limits.pop("`events` of a `publish`, `limit` of a `search`") == f"{messages.LIST_ITEMS_MAX} items"
    assert (
        limits.pop("`messages` of a question")
        == f"the last {MESSAGES_MAX}, and {RAW_CHARS_MAX} characters of them, are read"
    )
    assert limits.pop("sessions turned off by `toggle`") == str(SESSIONS_MAX)
    assert limits.pop("`last` of an `explain`") == f"{messages.RECALLS_MAX} recalls"
    assert limits.pop("nesting of `event` and `params`") == f"{messages.NESTING_MAX} levels"
    assert not limits, "a limit that no test knows"


def test_the_size_in_the_prose(text: str) -> None:
    assert f"at most {messages.MESSAGE_BYTES_MAX // 2**20} MiB" in section(text, 3)
    assert f"nest at most {messages.NESTING_MAX} deep" in section(text, 3)
    assert f"over {messages.MESSAGE_BYTES_MAX // 2**20} MiB" in section(text, 9)
    assert f"once {messages.UNACKED_MAX} later ones" in section(text, 6)
