"""Questions to a fake daemon: every outcome, and never an exception."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from recalld_client import Recall

from .fake_daemon import CTX, FakeDaemon, Map, Spiteful, connect, until

pytestmark = pytest.mark.anyio


async def test_a_question_gets_its_answer(fake: FakeDaemon) -> None:
    async with connect(fake) as client:
        await client.ready(5)
        answer = await client.recall("boats", CTX, ttl_ms=4000)
    assert answer
    assert (answer.status, answer.text, answer.tokens) == ("ok", "about boats", 3)
    assert answer.memories == [{"id": "m1"}]
    [question] = fake.of_type("before_prompt_build")
    assert question["ttl_ms"] == 4000
    assert question["event"] == {"prompt": "boats"}
    assert question["ctx"] == CTX
    assert "seq" not in question


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"status": "empty", "text": "", "elapsed_ms": 4}, Recall("empty", elapsed_ms=4.0)),
        ({"status": "skipped", "reason": "cron"}, Recall("skipped", reason="cron")),
        ({"status": "partial", "text": "t", "reason": "vector_late"}, Recall("partial", "t", reason="vector_late")),
        ({"status": "partial", "text": "t", "placement": "system"}, Recall("partial", "t", placement="system")),
        ({"status": "partial", "text": "t", "placement": 5}, Recall("partial", "t")),
        ({"status": "error", "reason": "E_DEADLINE", "text": "x"}, Recall("error", reason="E_DEADLINE")),
        ({"status": 5, "text": 5, "memories": 5, "tokens": "5", "elapsed_ms": "5"}, Recall("error")),
        ({}, Recall("error")),
    ],
)
async def test_every_status(fake: FakeDaemon, sent: Map, expected: Recall) -> None:
    fake.contexts = lambda question: [sent]
    async with connect(fake) as client:
        await client.ready(5)
        answer = await client.recall("x", CTX, ttl_ms=5000)
    assert answer == expected
    assert bool(answer) == (expected.status == "partial")


async def test_many_questions_at_a_time_are_told_apart(fake: FakeDaemon) -> None:
    questions: list[Map] = []

    def collect(question: Map) -> Iterator[Map]:
        questions.append(question)
        return iter(())

    fake.contexts = collect
    async with connect(fake) as client:
        await client.ready(5)
        asking = [asyncio.create_task(client.recall(f"p{number}", CTX, ttl_ms=10_000)) for number in range(50)]
        await until(lambda: len(questions) == 50)
        for question in reversed(questions):
            text = question["event"]["prompt"]
            fake.publish(client.src, {"type": "context", "re": question["id"], "status": "ok", "text": text})
        answers = await asyncio.gather(*asking)
    assert [answer.text for answer in answers] == [f"p{number}" for number in range(50)]


async def test_a_second_answer_is_dropped(fake: FakeDaemon) -> None:
    fake.contexts = lambda question: [{"status": "ok", "text": "first"}, {"status": "ok", "text": "second"}]
    async with connect(fake) as client:
        await client.ready(5)
        answers = [(await client.recall("x", CTX, ttl_ms=5000)).text for _ in range(5)]
    assert answers == ["first"] * 5


async def test_no_answer_in_time_is_a_timeout_and_a_late_one_is_dropped(fake: FakeDaemon) -> None:
    fake.contexts = lambda question: []
    async with connect(fake) as client:
        await client.ready(5)
        answer = await client.recall("late", CTX, ttl_ms=30)
        assert (answer.status, answer.text, bool(answer)) == ("timeout", "", False)
        assert 45 <= answer.elapsed_ms < 5000, "ttl_ms and the margin"
        assert not client._link._asked, "what nobody waits for takes no memory"
        late = fake.of_type("before_prompt_build")[0]["id"]
        fake.publish(client.src, {"type": "context", "re": late, "status": "ok", "text": "too late"})
        fake.contexts = lambda question: [{"status": "ok", "text": "on time"}]
        assert (await client.recall("next", CTX, ttl_ms=5000)).text == "on time"


async def test_a_daemon_that_stopped_is_a_timeout(fake: FakeDaemon) -> None:
    async with connect(fake) as client:
        await client.ready(5)
        fake.reading.clear()
        async with asyncio.timeout(5):
            assert (await client.recall("x", CTX, ttl_ms=20)).status in ("timeout", "ok")  # it may have been reading
            assert (await client.recall("x", CTX, ttl_ms=20)).status == "timeout"
        fake.reading.set()


async def test_questions_are_not_queued_before_a_daemon_that_does_not_read(fake: FakeDaemon) -> None:
    async with connect(fake) as client:
        await client.ready(5)
        fake.reading.clear()
        answers = [await client.recall("x" * 500_000, CTX, ttl_ms=1) for _ in range(12)]
        assert answers[-1] == Recall("unavailable", reason="the daemon does not read")
        fake.reading.set()


async def test_a_question_adds_no_events_to_a_long_queue(fake: FakeDaemon) -> None:
    async with connect(fake, close_timeout_s=0.05) as client:
        await client.ready(5)
        fake.reading.clear()
        for _ in range(400):
            client.emit("llm_output", {"assistantTexts": ["x" * 10_000]}, CTX)
        statuses = {(await client.recall("x", CTX, ttl_ms=1)).status for _ in range(40)}
        assert "unavailable" not in statuses
        fake.reading.set()


async def test_a_connection_that_ends_answers_the_open_questions(fake: FakeDaemon) -> None:
    fake.contexts = lambda question: []
    async with connect(fake) as client:
        await client.ready(5)
        asking = asyncio.create_task(client.recall("x", CTX, ttl_ms=60_000))
        await until(lambda: fake.of_type("before_prompt_build"))
        fake.hang_up()
        async with asyncio.timeout(5):
            assert (await asking).status == "unavailable"
        assert await client.ready(5)
        fake.contexts = lambda question: [{"status": "empty"}]
        assert (await client.recall("y", CTX, ttl_ms=5000)).status == "empty"
    prompts = [question["event"]["prompt"] for question in fake.of_type("before_prompt_build")]
    assert prompts == ["x", "y"], "a question is never sent again"


async def test_an_error_in_place_of_an_answer(fake: FakeDaemon) -> None:
    fake.errors = lambda message: "E_ENVELOPE" if message["type"] == "before_prompt_build" else None
    async with connect(fake) as client:
        await client.ready(5)
        assert await client.recall("x", CTX, ttl_ms=5000) == Recall("error", reason="E_ENVELOPE")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("x", 7, 100), "E_MALFORMED"),
        (("x", CTX, "soon"), "E_MALFORMED"),
        (("x", CTX, float("nan")), "E_MALFORMED"),
        ((Spiteful(), CTX, 100), "E_MALFORMED"),
        (("x" * 5_000_000, CTX, 100), "E_TOO_LARGE"),
    ],
    ids=["ctx", "text", "nan", "object", "large"],
)
async def test_recall_never_raises(fake: FakeDaemon, arguments: Any, reason: str) -> None:
    async with connect(fake) as client:
        await client.ready(5)
        assert await client.recall(*arguments) == Recall("error", reason=reason)


async def test_ttl_is_kept_within_the_protocols_bounds(fake: FakeDaemon) -> None:
    async with connect(fake, margin_ms=5000) as client:
        await client.ready(5)
        for ttl_ms in (-5, 10**9):
            await client.recall("x", CTX, ttl_ms=ttl_ms)
    assert [question["ttl_ms"] for question in fake.of_type("before_prompt_build")] == [1, 60_000]


async def test_recall_can_be_cancelled(fake: FakeDaemon) -> None:
    fake.contexts = lambda question: []
    async with connect(fake) as client:
        await client.ready(5)
        asking = asyncio.create_task(client.recall("x", CTX, ttl_ms=60_000))
        await until(lambda: fake.of_type("before_prompt_build"))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_question_follows_what_was_emitted_before_it(fake: FakeDaemon) -> None:
    async with connect(fake) as client:
        await client.ready(5)
        client.emit("message_received", {"content": "hi"}, CTX)
        await client.recall("hi", CTX, ttl_ms=5000)
    assert [message["type"] for message in fake.received[1:]] == ["message_received", "before_prompt_build"]


async def test_a_question_does_not_wait_for_a_long_backlog(fake: FakeDaemon) -> None:
    async with connect(fake, events_max=8192, close_timeout_s=30) as client:
        await client.ready(5)
        for _ in range(2000):
            client.emit("llm_output", {"assistantTexts": ["x" * 5000]}, CTX)
        await client.recall("quick", CTX, ttl_ms=10_000)
        position = [message["type"] for message in fake.received].index("before_prompt_build")
        assert position < 500
        assert await client.flush(30)
