"""Why something was injected: told of a running daemon's answers, and asked again, over rpc and on the command line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from daemon_process import DaemonProcess, cli
from recalld_client import RecalldError, SyncClient

SECONDS = 20.0
CTX = {"agent_id": "main", "session_key": "agent:main:chat", "run_id": "r1"}
QUESTION = "What is my boat called?"


def cli_json(process: DaemonProcess, *arguments: str) -> Any:
    result = cli(process, *arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def explained(client: SyncClient, count: int, ctx: dict[str, str] = CTX) -> list[dict[str, Any]]:
    """The log, once it has so many: an answer is noted a moment after it was sent."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            found: list[dict[str, Any]] = client.explain(ctx, last=50)["recalls"]
        except RecalldError as e:
            assert e.code == "E_NOT_FOUND"  # noqa: PT017
            found = []
        if len(found) >= count:
            assert len(found) == count
            return found
    raise AssertionError(f"{count} recalls were not logged")


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[SyncClient]:
    """Of a gateway that stored two memories and asked one question."""
    with SyncClient("gateway", daemon.runtime_dir) as client:
        assert client.ready(SECONDS)
        client.store("My boat is called Aurora and lies in Lisbon.", CTX)
        client.store("The garage code is on the blue card.", CTX)
        client.drain()
        assert client.recall(QUESTION, CTX, ttl_ms=5_000).status == "ok"
        explained(client, 1)
        yield client


def test_an_answer_is_explained(daemon: DaemonProcess, client: SyncClient) -> None:
    [recall] = cli_json(daemon, "explain")["recalls"]
    assert (recall["id"], recall["query"], recall["status"], recall["source"]) == ("r1", QUESTION, "ok", "search")
    assert (recall["session"], recall["run_id"]) == ("agent:main:chat", "r1")
    assert {"vector", "lexical", "searched", "ranked", "packed"} <= set(recall["stages"])
    first = recall["candidates"][0]
    assert (first["id"], first["verdict"]) == ("m1", "injected")
    assert {"lexical", "window"} <= set(first["parts"])
    assert "Aurora" in first["text"]
    assert {c["id"]: c["verdict"] for c in recall["candidates"]}["m2"] == "below_floor"
    assert "blue card" in {c["id"]: c["text"] for c in recall["candidates"]}["m2"]

    text = cli(daemon, "explain", "r1").stdout
    for word in ("r1", QUESTION, "m1", "injected", "below_floor", "lexical", "Aurora", "floor"):
        assert word in text
    assert QUESTION in cli(daemon, "explain", "--last", "5").stdout
    assert cli(daemon, "explain", "2").returncode == 8


def test_another_agents_recalls_cannot_be_named(daemon: DaemonProcess, client: SyncClient) -> None:
    for op in (client.explain, client.replay_recall):
        for recall_id in (None, "r1"):
            with pytest.raises(RecalldError, match="E_NOT_FOUND"):
                op({"agent_id": "other"}, recall_id)
        with pytest.raises(RecalldError, match="E_SCOPE"):
            op({}, "r1")
    with pytest.raises(RecalldError, match="E_NOT_FOUND"):
        client.explain({"agent_id": "main", "session_key": "agent:main:elsewhere"})
    assert cli(daemon, "explain", "--agent", "other").returncode == 8


def test_what_was_forgotten_is_told_without_its_text(client: SyncClient) -> None:
    client.forget("m1", CTX)
    [recall] = client.explain(CTX, "r1")["recalls"]
    assert "text" not in recall["candidates"][0]
    assert recall["candidates"][0]["id"] == "m1"
    assert "Aurora" not in str(recall)


def test_private_words_do_not_reach_the_log(client: SyncClient) -> None:
    client.recall(f"{QUESTION} <private>my code is 4711</private>", CTX, ttl_ms=5_000)
    recalls = explained(client, 2)
    assert "4711" not in str(recalls)


def test_what_a_gate_keeps_out_is_not_logged(client: SyncClient) -> None:
    heartbeat = {**CTX, "trigger": "heartbeat"}
    assert client.recall("Where does my boat lie?", heartbeat, ttl_ms=5_000).status == "skipped"
    assert client.recall("Where does my boat lie?", CTX, ttl_ms=5_000).status == "ok"
    assert [r["query"] for r in explained(client, 2)] == ["Where does my boat lie?", QUESTION]


def test_asked_again_under_other_settings(daemon: DaemonProcess, client: SyncClient) -> None:
    before = client.status()["recalls"]
    same = cli_json(daemon, "replay-recall", "r1")
    assert (same["entered"], same["left"]) == ([], [])
    assert [c["score"] for c in same["now"]["candidates"]] == [c["score"] for c in same["then"]["candidates"]]
    assert "id" not in same["now"]

    lower = cli_json(daemon, "replay-recall", "--floor", "0", "--set", "recall.items_max=2")
    assert (lower["entered"], lower["left"]) == (["m2"], [])
    assert (lower["now"]["settings"]["floor"], lower["now"]["settings"]["items_max"]) == (0, 2)
    one = cli(daemon, "replay-recall", "--floor", "0", "--items-max", "1").stdout
    assert "stayed" in one
    assert "entered" not in one

    client.store("My boat Aurora is what it is called: the boat is called Aurora.", CTX)
    client.drain()
    today = client.replay_recall(CTX, "r1", {"items_max": 1})
    assert (today["entered"], today["left"]) == (["m3"], ["m1"])
    text = cli(daemon, "replay-recall", "--items-max", "1").stdout
    for word in ("entered", "left", "items_max", "m1", "m3"):
        assert word in text

    assert client.status()["recalls"] == before
    assert len(explained(client, 1)) == 1
    assert client.get("m3", CTX).get("uses", 0) == 0


def test_a_follow_up_is_explained_and_asked_again_with_what_was_said_before(client: SyncClient) -> None:
    client.emit("llm_output", {"assistantTexts": ["Aurora."]}, CTX)
    assert client.flush(SECONDS)
    assert client.recall("Where is it?", CTX, ttl_ms=5_000).status != "skipped"
    recall = explained(client, 2)[0]
    assert QUESTION in recall["context"]
    replayed = client.replay_recall(CTX, recall["id"])
    assert [c["score"] for c in replayed["now"]["candidates"]] == [c["score"] for c in replayed["then"]["candidates"]]


def test_a_style_sets_anew_what_styles_set(client: SyncClient) -> None:
    strict = client.replay_recall(CTX, "r1", {"style": "precision-heavy", "items_max": 4})["now"]["settings"]
    plain = client.replay_recall(CTX, "r1")["now"]["settings"]
    assert strict["floor"] > plain["floor"]
    assert strict["items_max"] == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--set", "recall.flor=0.5"), "did you mean `recall.floor`"),
        (("--floor", "7"), "recall.floor"),
        (("--set", "recall.items_max=many"), "recall.items_max"),
        (("--set", "turns.quiet_ms=5"), "recall.KEY=VALUE"),
        (("--set", "floor"), "recall.KEY=VALUE"),
    ],
)
def test_settings_that_are_wrong_are_named(
    daemon: DaemonProcess, client: SyncClient, arguments: tuple[str, ...], said: str
) -> None:
    result = cli(daemon, "replay-recall", *arguments)
    assert result.returncode in (2, 8)
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_uses_and_shortcuts_are_shown(daemon: DaemonProcess, client: SyncClient) -> None:
    assert client.recall(QUESTION, CTX, ttl_ms=5_000).status == "ok"
    assert [r["source"] for r in explained(client, 2)] == ["cache", "search"]
    assert client.status()["recalls_cached"] == 1
    assert "cached 1" in cli(daemon, "status").stdout
    assert cli_json(daemon, "show", "m1")["uses"] == 2
    assert "2 times, last on 20" in cli(daemon, "show", "m1").stdout
    client.store("My boat needs paint.", CTX)
    assert client.recall(QUESTION, CTX, ttl_ms=5_000).status == "ok"
    assert explained(client, 3)[0]["source"] == "search"


def test_the_log_outlives_the_daemon(daemon: DaemonProcess, client: SyncClient) -> None:
    assert client.recall("Where does my boat lie?", CTX, ttl_ms=5_000).status == "ok"
    assert daemon.stop() == 0
    daemon.start()
    assert [r["query"] for r in explained(client, 2)] == ["Where does my boat lie?", QUESTION]
