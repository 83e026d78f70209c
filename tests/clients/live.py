"""What the tests with a real daemon share. The fixture `daemon` is the whole suite's."""

from pathlib import Path
from typing import Any, Protocol


class Process(Protocol):
    @property
    def pid(self) -> int: ...


class Daemon(Protocol):
    """A recalld of its own for one test."""

    @property
    def runtime_dir(self) -> Path: ...
    @property
    def process(self) -> Process: ...
    def kill(self) -> None:
        """SIGKILL, and wait for its end."""

    def start(self) -> None:
        """Start it again on the same data, and wait until it listens."""


FACT = "My boat is called Aurora and lies in the harbour of Lisbon."
QUESTION = "What is my boat called and where does it lie?"


def scope(agent: str, session: str, **more: Any) -> dict[str, Any]:
    return {
        "agent_id": agent,
        "session_key": f"agent:{agent}:{session}",
        "session_id": f"{session}-1",
        "trigger": "user",
        "chat_type": "direct",
        "provenance": "external_user",
        **more,
    }
