"""What `core.distinct` and `core.excerpt` do to conversations: `measure_injection.py CONVERSATION.json …`.

Duplicates: of all pairs of memories of different turns, how many share so much of their pairs of terms, and how many of
these are taken for the same. Each of those is printed: it should be one.

Excerpts: six turns that follow each other as one memory (a dozen lines), each question of which the evidence is in it, and
how much of the evidence is in 600 characters of it (an even share of the default budget).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from recalld.core import excerpt
from recalld.core.clean import shorten
from recalld.core.distinct import adds_nothing, said
from recalld.core.extract import extract
from recalld.core.rank import understand
from recalld.core.words import terms
from recalld.edge.embed import load_background

THRESHOLDS = (0.6, 0.7, 0.8, 0.9)
TURNS = 6
CHARS = 600
BACKGROUND = load_background()


def text_of(told: Mapping[str, Any], turn: Mapping[str, Any]) -> str:
    parts = ((told["user"], turn["user"]), (told["assistant"], turn["assistant"]))
    return "\n".join(f"{name}: {text}" for name, text in parts if text)


def duplicates(files: list[Mapping[str, Any]]) -> None:
    counts = dict.fromkeys(THRESHOLDS, 0)
    pairs, same = 0, []
    for told in files:
        memories = [
            (turn["run_id"], text)
            for session in told["sessions"]
            for turn in session["turns"]
            for text in (text_of(told, turn), *(f.text for f in extract(turn["user"], told["user"])))
        ]
        compared = [said(text) for _, text in memories]
        for (run, text), new in zip(memories, compared, strict=True):
            for (other, known), old in zip(memories, compared, strict=True):
                if run == other or not new.pairs:
                    continue
                pairs += 1
                shared = len(new.pairs & old.pairs) / len(new.pairs)
                for threshold in THRESHOLDS:
                    counts[threshold] += shared >= threshold
                if adds_nothing(new, old, BACKGROUND.share):
                    same.append((text, known))
    print(json.dumps({"pairs": pairs, "share_these_pairs_of_terms": counts, "taken_for_the_same": len(same)}))
    for text, known in same:
        print(json.dumps({"new": text, "known": known[:300]}))


def cuts(weights: Mapping[str, float]) -> dict[str, Callable[[str], str]]:
    def best(text: str) -> str:
        found = excerpt.Passage(text, weights).cut(CHARS)
        return found.text if found else ""

    return {"excerpt": best, "head": lambda t: t[:CHARS], "head and tail": lambda t: shorten(t, CHARS)}


def excerpts(files: list[Mapping[str, Any]]) -> None:
    kept: dict[str, float] = {}
    chars: dict[str, int] = {}
    asked, length = 0, 0
    for told in files:
        df: dict[str, int] = {}
        turns = [turn for session in told["sessions"] for turn in session["turns"]]
        for turn in turns:
            for term in set(terms(text_of(told, turn))):
                df[term] = df.get(term, 0) + 1
        for session in told["sessions"]:
            for at in range(0, len(session["turns"]), TURNS):
                chunk = {turn["run_id"]: turn for turn in session["turns"][at : at + TURNS]}
                text = "\n".join(text_of(told, turn) for turn in chunk.values())
                if len(text) <= CHARS:
                    continue
                for question in told["questions"]:
                    evidence = " ".join(text_of(told, chunk[run]) for run in question["evidence"] if run in chunk)
                    if not evidence:
                        continue
                    asked, length = asked + 1, length + len(text)
                    sentences = [s.text for s in excerpt._sentences(evidence)]
                    asked_for = understand(question["question"], "", df, len(turns), BACKGROUND)
                    weights = {term: asked_for.idf[term] for term in asked_for.content}
                    for name, cut in cuts(weights).items():
                        shown = cut(text)
                        part = sum(len(s) for s in sentences if s in shown) / sum(map(len, sentences))
                        kept[name] = kept.get(name, 0.0) + part
                        chars[name] = chars.get(name, 0) + len(shown)
    for name, total in kept.items():
        print(
            json.dumps(
                {
                    "cut": name,
                    "evidence_kept": round(total / asked, 3),
                    "chars_mean": round(chars[name] / asked),
                    "of_chars": round(length / asked),
                    "questions": asked,
                }
            )
        )


if __name__ == "__main__":
    conversations = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]
    excerpts(conversations)
    duplicates(conversations)
