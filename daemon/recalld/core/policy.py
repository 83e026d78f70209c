"""What besides relevance orders memories: bounded bonuses, what has been superseded or has expired, and links.

order = score + importance + confidence + recency + source + directive

The floor is decided on the score alone. Importance, confidence and recency together move a memory by at most BAND: they
decide between near-equals and never bury what answers the question. Measured: ARCHITECTURE.md, "Order".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Literal, get_args

from recalld.core.scored import Candidate, Scored
from recalld.wire.messages import Decay

LinkType = Literal["supersedes", "caused_by", "part_of", "related_to", "depends_on"]
LINK_TYPES: tuple[str, ...] = get_args(LinkType)

BAND = 0.03  # where scores go to 3 and the floor is 0.84
IMPORTANCE = 0.3 * BAND  # up or down
CONFIDENCE = 0.3 * BAND  # down
RECENCY = 0.4 * BAND  # down

DAY_MS = 86_400_000
HALF_LIFE_DAYS: dict[Decay, float] = {"durable": 90, "normal": 14, "short": 2, "ephemeral": 4 / 24}

NOTE_PATH = "note"  # what a note without a path is matched as
SOURCE_PRIORS = {
    "*/drafts/*": -0.15,
    "*/draft-*": -0.15,
    "*.draft.*": -0.15,
    "*/raw/*": -0.15,
    "*.log": -0.15,
    "*MEMORY.md": 0.05,
    "*/notes/*": 0.05,
    "*/wiki/*": 0.05,
    NOTE_PATH: 0.05,
}

LINK_SHARE = 0.7  # of its partner's score, for a memory that is there for a link alone
LINKED_MAX = 3  # in one answer


def stands(memory: Candidate, now_ms: int) -> bool:
    """Whether it may be given: neither superseded nor expired. What is pinned does not expire."""
    return memory.superseded_by is None and (memory.expires_ms is None or memory.expires_ms > now_ms or memory.pinned)


def recency(decay: Decay, age_ms: int) -> float:
    """In [-RECENCY, 0]: half of what is left is lost in each half-life of the class; nothing where it is permanent."""
    half_life = HALF_LIFE_DAYS.get(decay)
    return 0.0 if half_life is None else -RECENCY * (1 - 0.5 ** (max(0, age_ms) / (half_life * DAY_MS)))


def source_prior(memory: Candidate, priors: Mapping[str, float]) -> float:
    """The lowest offset of the patterns that match its path: a draft among the notes is a draft."""
    path = memory.source or (NOTE_PATH if memory.kind == "note" else None)
    return 0.0 if path is None else _prior_of(path, tuple(priors.items()))


@lru_cache(maxsize=4_096)
def _prior_of(path: str, priors: tuple[tuple[str, float], ...]) -> float:
    rooted = path if path == NOTE_PATH or path.startswith("/") else f"/{path}"
    return min((offset for pattern, offset in priors if _compiled(pattern).match(rooted)), default=0.0)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def adjust(
    scored: Sequence[Scored],
    now_ms: int,
    priors: Mapping[str, float],
    directed: Mapping[int, str] | None = None,
    floor: float = 0.0,
) -> list[Scored]:
    """Those that stand, in their order, each bonus among their `parts`; `score` stays what relevance made it.

    `directed`: the directive that asks for a memory, by memory id; such a one is ordered as if it just reached `floor`.
    """
    placed: list[tuple[float, int, Scored]] = []
    for one in scored:
        memory = one.memory
        if not stands(memory, now_ms):
            continue
        bonus = {
            "importance": IMPORTANCE * (2 * memory.importance - 1),
            "confidence": CONFIDENCE * (memory.confidence - 1),
            "recency": recency(memory.decay, now_ms - memory.created_ms),
            "source": source_prior(memory, priors),
        }
        via = one.via
        if directed and one.score < floor and memory.id in directed:
            bonus["directive"] = floor - one.score
            via = f"directive {directed[memory.id]}"
        order = one.score + sum(bonus.values())
        placed.append((-order, memory.id, Scored(memory, one.score, {**one.parts, **bonus}, via)))
    placed.sort(key=lambda place: place[:2])
    return [one for _, _, one in placed]


def succeeded(scored: Sequence[Scored], successors: Mapping[int, Candidate]) -> list[Scored]:
    """Each superseded memory replaced by its successor, with the better of their two scores; gone where it has none.

    `successors`: what now stands, by the id of the superseded memory.
    """
    by_id = {one.memory.id: one for one in scored if one.memory.superseded_by is None}
    for one in scored:
        if one.memory.superseded_by is None or (memory := successors.get(one.memory.id)) is None:
            continue
        known = by_id.get(memory.id)
        if known is None or known.score < one.score:
            by_id[memory.id] = Scored(memory, one.score, dict(one.parts), f"supersedes m{one.memory.id}")
    return list(by_id.values())


def linked_to(ordered: Sequence[Scored], links: Iterable[tuple[int, int, str]]) -> dict[int, tuple[Scored, str]]:
    """The partner among `ordered`, and the type of the link, of each memory that is not among them, best partner first.

    A link is followed from both of its ends.
    """
    rank = {one.memory.id: number for number, one in enumerate(ordered)}
    found: dict[int, tuple[Scored, str]] = {}
    ends = [
        (rank[a], b, kind)
        for from_id, to_id, kind in links
        for a, b in ((from_id, to_id), (to_id, from_id))
        if a in rank
    ]
    for number, other, kind in sorted(ends):
        if other not in rank and kind != "supersedes":
            found.setdefault(other, (ordered[number], kind))
    return found


def joined(partners: Mapping[int, tuple[Scored, str]], memories: Iterable[Candidate], now_ms: int) -> list[Scored]:
    """The linked memories that stand, at LINK_SHARE of their partner's score, LINKED_MAX at most, best partner first."""
    by_id = {memory.id: memory for memory in memories if stands(memory, now_ms)}
    found = []
    for memory_id, (partner, kind) in partners.items():
        if (memory := by_id.get(memory_id)) is not None:
            score = round(LINK_SHARE * partner.score, 4)
            parts = {**dict.fromkeys(partner.parts, 0.0), "link": score}
            found.append(Scored(memory, score, parts, f"{kind} m{partner.memory.id}"))
    return found[:LINKED_MAX]
