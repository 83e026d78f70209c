"""Facts by rule: what a sentence of the user says that will still matter later, with its category. No model.

First form: statements in the first person become third-person facts with the speaker's name; questions, reported
speech and conditionals are left alone. Each rule is a shape of English, never a topic.
"""

from __future__ import annotations

import re

from msgspec import Struct

FACTS_MAX = 8  # per turn: more is a document, which the turn itself holds
_SENTENCE_CHARS = (12, 300)

_SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+|\n+")
_NOT_A_STATEMENT = re.compile(
    r"^(?:if|when|would|could|should|maybe|perhaps|imagine|suppose)\b|\b(?:she|he|they|you) (?:said|says|told|think|thinks)\b",
    re.IGNORECASE,
)
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (category, re.compile(pattern, re.IGNORECASE))
    for category, pattern in (
        (
            "decision",
            r"\b(?:I|we)(?:'ve|’ve| have)? (?:decided|chose|chosen|agreed|settled on)\b|\blet's (?:go with|use|stick with)\b",
        ),
        ("rule", r"^(?:please )?(?:always|never|from now on|remember (?:that|to)|don't ever|make sure)\b"),
        (
            "preference",
            r"\bI (?:really |always |usually |absolutely )*(?:prefer|like|love|enjoy|hate|dislike|can't stand|adore)\b"
            r"|\bmy (?:all-time )?favou?rite\b|\bI(?:'d|’d| would) rather\b",
        ),
        (
            "plan",
            r"\bI(?:'m|’m| am) (?:going to|planning|about to|looking forward)\b|\bI(?:'ll|’ll| will| plan to| intend to)\b"
            r"|\bmy (?:plan|goal) is\b",
        ),
        (
            "entity",
            r"\bmy (?:[a-z]+ ){0,2}(?:name|e-?mail|phone|address|birthday|number) is\b"
            r"|\b(?:is|am|are) called\b|\bmy name(?:'s|’s)\b",
        ),
        (
            "fact",
            r"\bI (?:live|lived|work|worked|was born|grew up|moved|own|have|had|got|study|studied|speak|play|started|bought"
            r"|adopted|joined|finished|quit|went|visited|met|married|used to)\b"
            r"|\b(?:I'm|I’m|I am) (?:an?|the|from|in|at|allergic|married|vegetarian|vegan|\d)\b"
            r"|\bmy (?:[a-z]+ ){0,3}(?:is|are|was|were|has|lives?|works?)\b",
        ),
    )
)


class Fact(Struct, frozen=True):
    category: str
    text: str


def extract(user: str, speaker: str) -> list[Fact]:
    """The facts in the user's words, at most FACTS_MAX, in order, without repetitions. `speaker` names who said them."""
    found: dict[str, Fact] = {}
    for sentence in map(str.strip, _SENTENCE_ENDS.split(user)):
        if not _SENTENCE_CHARS[0] <= len(sentence) <= _SENTENCE_CHARS[1] or sentence.endswith("?"):
            continue
        if _NOT_A_STATEMENT.search(sentence):
            continue
        category = next((c for c, rule in _RULES if rule.search(sentence)), None)
        if category is not None:
            found.setdefault(sentence.lower(), Fact(category, f"{speaker}: {sentence}"))
            if len(found) == FACTS_MAX:
                break
    return list(found.values())
