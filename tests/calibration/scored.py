"""Conversation files as scoring sees them: the memories that the daemon would make of each, and the parts of every memory's
score (`core.rank.parts`) for its own questions and for those of the other files."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recalld.core import rank
from recalld.core.clean import clean
from recalld.core.features import Rows, encode, features_of
from recalld.core.scored import Candidate
from recalld.core.words import terms
from recalld.edge.embed import DIMENSIONS, Embedder
from recalld.edge.features import Entry, FeatureIndex, session_number
from recalld.edge.recordings import Conversation, conversation_events
from recalld.edge.units import TurnRow
from recalld.service.capture import memories_of
from recalld.service.ranking import searched

FOREIGN, SEED = 80, 1000  # questions of other files, asked of each
FORMER = {"coverage": 1.0, "cosine": 0.6}  # of all terms, and of the memory alone: an older formula, to compare with
PARTS = (*rank.WEIGHTS, *FORMER)

Array = npt.NDArray[Any]


class Kept(NamedTuple):
    """A conversation as the daemon keeps it. `turn`: the number of each memory's turn; `session`: of each turn."""

    told: Conversation
    memories: list[Candidate]
    turn: Array
    session: Array
    rows: Rows
    holders: Mapping[str, list[int]]  # memories by term


class Seen(NamedTuple):
    """What one file's memories have of its own questions, of those of all other files (`source`: which file), and of
    FOREIGN of these (`some`) with its people's names put in. Shapes: (questions, memories, PARTS).
    `wanted`: the turns that answer each question of its own."""

    kept: Kept
    wanted: list[list[int]]
    own: Array
    foreign: Array
    source: Array
    some: Array
    renamed: Array


def keep(told: Conversation, embedder: Embedder) -> Kept:
    said = {turn.run_id: turn for sitting in told.sessions for turn in sitting.turns}
    memories: list[Candidate] = []
    sessions: list[str] = []
    for event in conversation_events(told):
        if event.type == "llm_input":
            turn, session = said[event.ctx["run_id"]], event.ctx["session_key"]
            for new in memories_of(_row(told, len(sessions), clean(turn.user), clean(turn.assistant))):
                memory_id = len(memories) + 1
                memories.append(
                    Candidate(
                        memory_id, len(sessions), new.kind, new.category, new.text, event.ts, session, [turn.run_id]
                    )
                )
            sessions.append(session)
    index = FeatureIndex(DIMENSIONS)
    holders: dict[str, list[int]] = defaultdict(list)
    for m, vector in zip(memories, embedder.embed([m.text for m in memories]).astype(np.float16), strict=True):
        features = encode(features_of(m.text, told.user, told.assistant))
        index.add([Entry(m.id, session_number(m.session), m.kind == "turn", m.created_ms, features, vector)])
        for term in set(terms(m.text)):
            holders[term].append(m.id - 1)
    numbers = np.array([m.turn_id for m in memories])
    return Kept(told, memories, numbers, np.array(sessions), index.read(m.id for m in memories), holders)


def _row(told: Conversation, number: int, user: str, assistant: str) -> TurnRow:
    """A turn as far as its memories depend on it."""
    return TurnRow(
        id=number,
        namespace="",
        agent="",
        session="",
        session_id=None,
        opened_ms=0,
        closed_ms=0,
        closed_by="",
        status="ok",
        outcome="captured",
        reason=None,
        revision=0,
        speaker=told.user,
        answerer=told.assistant,
        user=user,
        assistant=assistant,
        transcript=None,
        workspace=None,
    )


def see(all_kept: Sequence[Kept], number: int, embedder: Embedder, background: rank.Background) -> Seen:
    kept = all_kept[number]
    turn = {run: n for m, n in zip(kept.memories, kept.turn.tolist(), strict=True) for run in m.runs}
    others = [(n, q.question) for n, other in enumerate(all_kept) if n != number for q in other.told.questions]
    some = random.Random(SEED + number).sample(range(len(others)), min(FOREIGN, len(others)))
    renamed = [_renamed(others[n][1], all_kept[others[n][0]].told, kept.told) for n in some]
    own = [q for q in kept.told.questions if q.evidence]
    return Seen(
        kept=kept,
        wanted=[[turn[run] for run in q.evidence] for q in own],
        own=_parts(kept, [q.question for q in own], embedder, background),
        foreign=_parts(kept, [question for _, question in others], embedder, background),
        source=np.array([n for n, _ in others]),
        some=np.array(some),
        renamed=_parts(kept, renamed, embedder, background),
    )


def _parts(kept: Kept, questions: Sequence[str], embedder: Embedder, background: rank.Background) -> Array:
    found = np.empty((len(questions), len(kept.memories), len(PARTS)), dtype=np.float32)
    for n, (text, vector) in enumerate(zip(questions, embedder.embed(list(questions)), strict=True)):
        df = {term: len(kept.holders.get(term, ())) for term in searched(terms(text))}
        query = rank.understand(text, "", df, len(kept.memories), background)
        parts: dict[str, Array] = dict(rank.parts(query, vector, kept.rows))
        parts["cosine"] = np.maximum(kept.rows.vectors[: len(kept.memories)] @ vector, 0)
        parts["coverage"] = np.zeros(len(kept.memories))
        for term, idf in query.idf.items():
            parts["coverage"][kept.holders.get(term, [])] += idf / sum(query.idf.values())
        found[n] = np.stack([parts[name] for name in PARTS], axis=1)
    return found


def _renamed(question: str, told: Conversation, here: Conversation) -> str:
    names = {told.user: here.user, told.assistant: here.assistant}
    return re.sub(rf"\b(?:{'|'.join(map(re.escape, names))})\b", lambda match: names[match[0]], question)
