"""The turns that a person counts in the recorded gateway sessions, written down by reading them, not by the machine.

The rules of the reading: what one person asked and what became of it is one turn, however often the gateway tried and
however it was restarted meanwhile. Commands (/new, reset, delete, compaction) are no turns. What another program wrote
(a sub-agent's task, its announcement to the parent) is seen, and not kept: of such a turn no words are stored.
"""

from __future__ import annotations

from typing import NamedTuple


class Expected(NamedTuple):
    session: str
    runs: frozenset[str]
    user: str
    answer: str
    status: str = "ok"
    outcome: str = "captured"
    reason: str | None = None


def turn(session: str, run: str, user: str, answer: str, status: str = "ok") -> Expected:
    return Expected(f"agent:main:{session}", frozenset({run}), user, answer, status)


def skipped(session: str, run: str, reason: str) -> Expected:
    return Expected(f"agent:main:{session}", frozenset({run}), "", "", "ok", "skipped", reason)


def canned(messages: int) -> str:
    return f"Fake model: canned answer ({messages} messages seen)."


def done(tools: int) -> str:
    return f"Fake model: done after {tools} tool result(s)."


SUBAGENT = "subagent:9f6c7ee5-50df-4a6d-95a3-0514e4d819d4"
SUBAGENT_RUN = "93ea5907-1cba-4211-92ea-7a286b398c9d"

CHAT = [
    turn("chat", "219b73e6-291f-46e0-801e-ba40f70f71d0", "first turn, plain", canned(3)),
    turn("chat", "04135856-6acb-498a-a65c-e151e76ee4d5", "second turn, plain", canned(5)),
    turn("chat", "ae41a114-aac2-458e-9ee1-859263959a13", 'third turn TOOL:ls {"path":"."}', done(1)),
    turn(
        "chat",
        "80122f1e-85eb-4f04-bb43-ea6257a76103",
        'fourth turn TOOL2:exec {"command":"echo hi-from-exec"}',
        done(2),
    ),
    # its tool failed; the turn did not
    turn(
        "chat",
        "a128052c-ec75-471a-88d8-b494a19675a1",
        'fifth turn TOOL:read {"path":"does-not-exist.txt"}',
        done(1),
    ),
    turn("chat", "2e65d8c0-565f-4cd6-bacb-ffdc24038287", "sixth turn, after compaction", canned(17)),
    turn("chat", "021ce22f-b51c-4580-b4d5-bc663d365640", "seventh turn, after /new", canned(3)),
    # the gateway was restarted; the session is the same
    turn("chat", "76c9d05e-ce59-4cba-b061-9959470ae79f", "eighth turn, after a gateway restart", canned(5)),
]

HTTP = [
    turn("http", "chatcmpl_022d20aa-8ab4-4ef7-82ca-5e915949f683", "http turn 1", canned(3)),
    turn("http", "chatcmpl_9b4d80fe-8d40-48df-a4a4-d569da4772cb", "http turn 2", canned(5)),
    turn("http", "chatcmpl_9b54d5ef-445e-4ff7-a200-7bcc6d382454", "http turn 3", canned(7)),
    turn("http", "chatcmpl_41034ce8-10be-460e-972c-e6d6ce889501", 'http turn four TOOL:ls {"path":"."}', done(1)),
    turn(
        "http",
        "chatcmpl_ba5ef517-0bb0-4717-8614-22643a672df6",
        'spawn TOOL:sessions_spawn {"task":"subagent task: say hi","label":"lab-sub"}',
        done(1),
    ),
    skipped(SUBAGENT, SUBAGENT_RUN, "subagent"),
    # the sub-agent's result, told to the parent's session with an empty prompt
    skipped("http", f"announce:v1:agent:main:{SUBAGENT}:{SUBAGENT_RUN}", "provenance"),
]

WEB = [
    turn("web", "wc-1", "webchat turn one", canned(3)),
    turn("web", "wc-2", 'webchat turn two TOOL:ls {"path":"."}', done(1)),
    turn("web", "wc-3", "webchat turn three SLOW:12", "", "aborted"),
]

TIME = [
    turn("time", "chatcmpl_d5177c2f-e4b5-4a4d-bb85-12833998b430", "delay five seconds", canned(3)),
    turn(
        "time",
        "chatcmpl_3c413d9e-dcb6-4716-b540-66420c084a1e",
        "delay seventeen seconds, over the 15 s budget",
        canned(5),
    ),
    turn("time", "chatcmpl_2801a744-db7e-4fb8-ab27-6856fbb6a446", "probe throws", canned(7)),
]

OTHERS = [
    # eight attempts of one run, each with its own question and end
    turn("fail", "chatcmpl_f82ef69d-75bc-4912-98f0-676fa05ee929", "FAIL500 please", "", "failed"),
    # cut off by SIGKILL, resumed and answered by the gateway itself after its restart
    Expected(
        "agent:main:killed",
        frozenset({"chatcmpl_48f9de55-473b-4e83-b6e4-1d61dcd7523a", "294305e3-ca70-4078-8f39-dbb9277bf77d"}),
        "SLOW:8 will be killed",
        canned(3),
    ),
    turn("local", "ed77f268-a993-4a1f-8d1e-2b9ca371d316", 'local turn TOOL:ls {"path":"."}', done(1)),
]

OLDER = [
    turn("chat", "39e03823-44bc-41f4-aeaa-123976eda026", "first turn", canned(2)),
    turn("chat", "5a971b1d-fa86-4897-ba6d-6779cf6adf56", 'second TOOL:read {"path":"nothing.txt"}', done(1)),
    turn("chat", "ee8a4057-0773-4e9e-8c07-6c321c5261b4", "after new", canned(2)),
    turn("http", "chatcmpl_47d63de8-7b86-450f-9cc4-6c34488fa1d0", "http turn one", canned(2)),
    turn("http", "chatcmpl_cd9db7cf-a866-4759-b697-680ba869cc30", "http turn two", canned(4)),
]

EXPECTED: dict[str, list[Expected]] = {
    "2026.9.6": [*CHAT, *HTTP, *WEB, *TIME, *OTHERS],
    "2026.6.35": OLDER,
}
