"""The protocol's text is enough: a client written from it alone, against a real daemon."""

import contextlib
import time
from collections.abc import Iterator

import pytest

from .live import FACT, QUESTION, Daemon, scope
from .plain_socket import PlainClient


@pytest.fixture
def client(daemon: Daemon) -> Iterator[PlainClient]:
    with contextlib.closing(PlainClient(daemon.runtime_dir)) as client:
        yield client


def test_a_turn_becomes_context_for_the_next_session(client: PlainClient) -> None:
    assert client.welcome["protocol"] == 1
    assert client.welcome["upto"] == 0
    captured = client.turn(scope("plain", "first", run_id="run-1"), FACT, "Good to know.")
    assert captured["outcome"] == "captured"
    assert captured["turn"]["closed_by"] == "grace"
    assert captured["memories"]
    assert not client.unacked

    until = time.monotonic() + 20
    while (answer := client.ask(scope("plain", "second"), QUESTION))["status"] not in ("ok", "partial"):
        assert answer["status"] == "empty"
        assert time.monotonic() < until, "what is stored is findable soon"
    assert "Aurora" in answer["text"]
    assert answer["memories"]


def test_a_question_of_another_agent_finds_nothing(client: PlainClient) -> None:
    client.turn(scope("plain", "first", run_id="run-1"), FACT, "Good to know.")
    answer = client.ask(scope("other", "first"), QUESTION)
    assert (answer["status"], answer.get("text") or "") == ("empty", "")


def test_a_question_without_scope_is_skipped(client: PlainClient) -> None:
    answer = client.ask({}, QUESTION)
    assert (answer["status"], answer["reason"]) == ("skipped", "unknown_scope")
