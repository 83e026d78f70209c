"""Texts to measure with: the word frequencies of general text, topics, and names nobody else has. The same every time.

Words drawn one by one would give texts whose embeddings are all alike, which no store of conversations is: a third of
a text's words come from its topic, so that there are near and far memories.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import recalld

NAMESPACE = "bench"
SPEAKER, ANSWERER = "Mira", "Assistant"
TOPICS = 400
TOPIC_WORDS, TOPIC_NAMES = 80, 12
TOPIC_SHARE = 0.35
COMMON_WORDS = 200  # of every topic, so of none
NAMES = 20_000
NAME_WEIGHT = 400.0  # the commonest name is as frequent as the hundredth word; then by rank, as Zipf has it

_SYLLABLES = [c + v + e for c in "bdfghjklmnprstvz" for v in "aeiou" for e in ("", "n", "r", "s", "l")]


class Exchange(NamedTuple):
    """What one turn says."""

    user: str
    assistant: str


class Texts:
    """A stream of texts. Two with the same seed give the same ones; those of all seeds share words and topics."""

    def __init__(self, seed: int) -> None:
        fixed = random.Random(1)
        table = msgspec.msgpack.decode((Path(recalld.__file__).parent / "data" / "background.msgpack").read_bytes())
        known = sorted(table["df"].items(), key=lambda item: (-item[1], item[0]))
        names = ["".join(fixed.choices(_SYLLABLES, k=fixed.randint(2, 4))) for _ in range(NAMES)]
        self._words = [word for word, _ in known] + names
        self._weights = list(accumulate([float(n) for _, n in known] + [NAME_WEIGHT / i for i in range(1, NAMES + 1)]))
        rare = self._words[COMMON_WORDS : len(known)]
        self._topics = [fixed.sample(rare, TOPIC_WORDS) + fixed.sample(names, TOPIC_NAMES) for _ in range(TOPICS)]
        self._random = random.Random(seed)

    def words(self, count: int, topic: int | None = None) -> list[str]:
        """So many words of one topic, a random one if none is named."""
        chosen = self._topics[self._random.randrange(TOPICS) if topic is None else topic]
        words = self._random.choices(self._words, cum_weights=self._weights, k=count)
        return [self._random.choice(chosen) if self._random.random() < TOPIC_SHARE else word for word in words]

    def prompt(self) -> str:
        """8 to 35 words."""
        return " ".join(self.words(self._random.randint(8, 35))) + "?"

    def prompt_about(self, said: Exchange) -> str:
        """8 to 35 words, the better half of them from what was said."""
        said_words = f"{said.user} {said.assistant}".replace(".", "").split()
        words = self._random.sample(said_words, len(said_words))
        return " ".join(self.words(self._random.randint(2, 15)) + words[: self._random.randint(6, 20)]) + "?"

    def exchange(self) -> Exchange:
        """10 to 60 words of one topic, said by two."""
        words = self.words(self._random.randint(10, 60))
        cut = self._random.randint(3, len(words) - 3)
        return Exchange(" ".join(words[:cut]) + ".", " ".join(words[cut:]) + ".")

    def name(self) -> str:
        """A word that no text has."""
        return "q" + "".join(self._random.choices(_SYLLABLES, k=3))


def turn_events(exchange: Exchange, session: str, run: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The three events (type, payload, ctx) with which a gateway tells of one turn."""
    ctx = {
        "agent_id": NAMESPACE,
        "session_key": f"agent:{NAMESPACE}:{session}",
        "run_id": run,
        "trigger": "user",
        "channel": "terminal",
        "sender_name": SPEAKER,
        "agent_name": ANSWERER,
    }
    answer = {"role": "assistant", "content": [{"type": "text", "text": exchange.assistant}], "stopReason": "stop"}
    yield "llm_input", {"runId": run, "prompt": exchange.user, "model": "none"}, ctx
    yield "llm_output", {"runId": run, "assistantTexts": [exchange.assistant], "lastAssistant": answer}, ctx
    yield "agent_end", {"success": True, "messages": [{"role": "user", "content": exchange.user}, answer]}, ctx
