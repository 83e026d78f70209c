"""Which of the ranked memories a prompt gets: relevant ones that say different things, and that it was not given lately."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from recalld.core.distinct import Said, adds_nothing, said
from recalld.core.excerpt import Passage
from recalld.core.given import Recent
from recalld.core.pack import LONG_CHARS, RecallSettings
from recalld.core.scored import Candidate, Scored, Verdict


def choose(
    ranked: Iterable[Scored],
    settings: RecallSettings,
    weights: Mapping[str, float],
    share: Mapping[str, float],
    recent: Recent,
) -> list[Scored]:
    """In their order, above the floor or there for another reason (`via`): memories that say different things, and that
    the session was not given lately.

    `weights`: the query's terms with their idf. `share`: see `adds_nothing`. What was given holds no place, but what only
    says the same again is not given either. Sets the verdict of all others.
    """
    chosen: list[Scored] = []
    known: list[Said] = []
    for scored in _one_for_each_turn([s for s in ranked if _is_wanted(s, settings)]):
        if len(chosen) == settings.items_max:
            scored.verdict = Verdict.ITEMS_MAX
            continue
        says = said(scored.memory.text)
        if any(adds_nothing(says, old, share) for old in known):
            scored.verdict = Verdict.NEAR_DUPLICATE
            continue
        known.append(says)
        if _tells_more(scored.memory, recent, weights):
            chosen.append(scored)
        else:
            scored.verdict = Verdict.GIVEN_RECENTLY
    return chosen


def _is_wanted(scored: Scored, settings: RecallSettings) -> bool:
    if scored.score < settings.floor and not scored.via:
        scored.verdict = Verdict.BELOW_FLOOR
        return False
    if not _is_of(scored.memory, settings.categories):
        scored.verdict = Verdict.CATEGORY
        return False
    return True


def _one_for_each_turn(ranked: Sequence[Scored]) -> list[Scored]:
    """A fact and its turn say the same thing: the turn, in the better place of the two, because it says it in context;
    but a fact that was ranked above a long turn, of which only a part would be shown, goes before it."""
    turns = {s.memory.turn_id: s for s in reversed(ranked) if s.memory.kind == "turn"}
    kept: dict[int, Scored] = {}
    for scored in ranked:
        turn_id = scored.memory.turn_id
        if turn_id is None:
            kept[-scored.memory.id] = scored
        elif turn_id not in kept:
            turn = turns.get(turn_id, scored)
            kept[turn_id] = turn if len(turn.memory.text) <= LONG_CHARS else scored
    ids = {scored.memory.id for scored in kept.values()}
    for scored in ranked:
        if scored.memory.id not in ids:
            scored.verdict = Verdict.SAME_TURN
    return list(kept.values())


def _tells_more(memory: Candidate, recent: Recent, weights: Mapping[str, float]) -> bool:
    """Whether a session that was given this `recent`ly does not know it all, as far as the query asks for it."""
    if memory.kind == "fact" and memory.turn_id in recent.turns:
        return False
    if memory.id not in recent.memories:
        return True
    kept = recent.memories[memory.id]
    return kept is not None and Passage(memory.text, weights).tells_more(kept)


def _is_of(memory: Candidate, categories: Collection[str]) -> bool:
    return not categories or memory.category in categories


def digest(
    newest: Iterable[Candidate], chosen: Iterable[Scored], categories: Collection[str], share: Mapping[str, float]
) -> list[Candidate]:
    """Of the newest memories those that say something beside what was chosen, in their order."""
    found = [scored.memory for scored in chosen]
    ids, turns = {m.id for m in found}, {m.turn_id for m in found if m.kind == "turn"}
    known = [said(m.text) for m in found]
    kept = []
    for memory in newest:
        if not _is_of(memory, categories):
            continue
        says = said(memory.text)
        if memory.id in ids or memory.turn_id in turns or any(adds_nothing(says, old, share) for old in known):
            continue
        known.append(says)
        kept.append(memory)
    return kept
