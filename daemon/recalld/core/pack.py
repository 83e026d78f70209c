"""What reaches a prompt: how much of each chosen memory, in what order and within what budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from recalld.core.block import BlockStyle, block, escape, label
from recalld.core.directives import Directive
from recalld.core.excerpt import CHARS_MIN, Excerpt, Passage
from recalld.core.given import Shown
from recalld.core.policy import SOURCE_PRIORS
from recalld.core.query import QuerySettings
from recalld.core.scored import Candidate, Scored, Verdict
from recalld.wire.messages import TEXT_CHARS_MAX, TTL_MS_DEFAULT, Memory, Placement, Ttl

TOKEN_BYTES = 4  # near for English, and for ideographs (3 bytes, about 0.75 tokens)
ITEMS_MAX = 50
LONG_CHARS = 600  # an even share of the default budget: a longer text is cut when all places are taken
BULLET_CHARS_MAX = 160  # of a digest: a line, not a paragraph
_AROUND_LINE = len("- \n")

Prior = Annotated[float, Meta(ge=-0.5, le=0.5)]


StyleName = Literal["", "balanced", "strict", "precision-heavy", "contextual", "recall-heavy", "preference-only"]


class RecallSettings(QuerySettings, frozen=True, forbid_unknown_fields=True):
    """What is asked, what of it is injected, and in what time.

    `floor`: the absolute score below which nothing is (measured: ARCHITECTURE.md, "Ranking"). `ttl_ms`: the budget of
    a question that names none. `margin_ms`: kept from it for the answer itself; at most a third of a shorter one.
    `style`: a preset (core/styles.py); empty is the one of the query mode. `categories`: the only ones that are injected;
    empty means all, and memories without one.
    `token_bytes`: what a token is taken for. `memory_chars_max`: shown of one memory. `repeat_turns`: what a session was
    given in so many turns is not given again. `order`: best first, or by id, so that the same memories are the same
    bytes. `cold_start`: what a session's first prompt gets beside what was found for it; at most `cold_start_tokens`.
    `source_priors`: by pattern of a memory's path, how much higher or lower it is ordered. `directives`: what is offered
    beside what was searched, `directives_max` memories in one block at most.
    `cache_s`: how long the same words find the same, where nothing was written meanwhile; 0: not at all.
    """

    items_max: Annotated[int, Meta(ge=1, le=ITEMS_MAX)] = 5
    tokens_max: Annotated[int, Meta(ge=64, le=32_768)] = 768
    token_bytes: Annotated[int, Meta(ge=1, le=16)] = TOKEN_BYTES
    memory_chars_max: Annotated[int, Meta(ge=CHARS_MIN, le=TEXT_CHARS_MAX)] = TEXT_CHARS_MAX
    floor: Annotated[float, Meta(ge=0, le=3)] = 0.84
    ttl_ms: Ttl = TTL_MS_DEFAULT
    margin_ms: Annotated[int, Meta(ge=1, le=1_000)] = 25
    style: StyleName = ""
    categories: tuple[str, ...] = ()
    block: BlockStyle = "relevant-memories"
    placement: Placement = "prepend"
    order: Literal["score", "stable"] = "score"
    repeat_turns: Annotated[int, Meta(ge=0, le=100)] = 5
    cold_start: Literal["off", "hint", "digest"] = "off"
    cold_start_tokens: Annotated[int, Meta(ge=32, le=4_096)] = 256
    source_priors: Annotated[dict[str, Prior], Meta(max_length=64)] = field(default_factory=SOURCE_PRIORS.copy)
    directives: Annotated[tuple[Directive, ...], Meta(max_length=64)] = ()
    directives_max: Annotated[int, Meta(ge=0, le=50)] = 4
    cache_s: Annotated[int, Meta(ge=0, le=120)] = 15


class Packed(Struct, frozen=True):
    """A block. `memories`: what it holds, best first; `shown`: how much of each."""

    text: str = ""
    tokens: int = 0
    memories: list[Memory] = field(default_factory=list)
    shown: tuple[Shown, ...] = ()


def tokens(text: str, token_bytes: int = TOKEN_BYTES) -> int:
    """An estimate: UTF-8 bytes / `token_bytes`, rounded up."""
    return -(-len(text.encode()) // token_bytes)


def pack(
    chosen: Sequence[Scored],
    settings: RecallSettings,
    weights: Mapping[str, float],
    newest: Iterable[Candidate] = (),
    hint: str = "",
) -> Packed:
    """Within the token budget: long memories are cut to an even share of what the short ones leave, to the sentences that
    hold the query's terms (`weights`: with their idf); one whose share would say nothing is passed over, and its verdict says so.

    `newest` and `hint` are a cold start. They take what is left, if all that was chosen has a place.
    """
    left = settings.tokens_max * settings.token_bytes - len(block([], settings.block).encode())
    items = [Item(scored.memory, memory_of(scored), settings, weights) for scored in chosen]
    while True:
        share = _share([item.cost for item in items], left)
        failed = [item for item in items if not item.cut(share)]
        if not failed:
            break
        items.remove(failed[-1])
    placed = {item.given.id for item in items}
    for scored in chosen:
        if scored.memory.id not in placed:
            scored.verdict = Verdict.BUDGET
    lines: list[str] = []
    if len(items) == len(chosen):
        left = min(left - sum(item.bytes for item in items), settings.cold_start_tokens * settings.token_bytes)
        if hint and len(hint.encode()) + _AROUND_LINE <= left:
            lines.append(hint)
            left -= len(hint.encode()) + _AROUND_LINE
        for memory in newest:
            item = Item(memory, shown(memory), settings, {}, BULLET_CHARS_MAX)
            if item.cut(left):
                items.append(item)
                left -= item.bytes
    if not items and not lines:
        return Packed()
    written = sorted(items, key=lambda item: item.given.id) if settings.order == "stable" else items
    text = block([*(item.line for item in written), *lines], settings.block)
    return Packed(
        text, tokens(text, settings.token_bytes), [item.memory for item in items], tuple(item.given for item in items)
    )


class Item:
    """A memory on its way into the block. `cost`: the bytes of its line, if all of it is shown; `bytes`: as it is cut."""

    def __init__(
        self,
        candidate: Candidate,
        memory: Memory,
        settings: RecallSettings,
        weights: Mapping[str, float],
        chars_max: int = TEXT_CHARS_MAX,
    ) -> None:
        text = candidate.text
        if candidate.summary and len(text) > LONG_CHARS:
            text = candidate.summary
        self._candidate = candidate
        self._style = settings.block
        self._label = label(candidate, settings.block)
        self._passage = Passage(text, weights)
        self._chars_max = min(len(self._passage.whole), settings.memory_chars_max, chars_max)
        self._excerpt: Excerpt | None = None
        self.memory = memory
        self.line = ""
        self.cost = self.bytes = self._write(self._chars_max)

    @property
    def given(self) -> Shown:
        memory = self._candidate
        return Shown(memory.id, memory.turn_id, memory.kind, self._excerpt.kept if self._excerpt else frozenset())

    def cut(self, bytes_max: int) -> bool:
        """Write its line in at most so many bytes; False where that would say nothing."""
        chars, size, bytes_max = self._chars_max, self.cost, max(bytes_max, 0)
        if self.bytes != self.cost:
            self.bytes = self._write(chars)
        while size > bytes_max:
            chars = min(chars - 1, chars * bytes_max // size)
            size = self.bytes = self._write(chars)
        return size > 0

    def _write(self, chars_max: int) -> int:
        """How many bytes the line takes; 0 where so few characters would say nothing."""
        self._excerpt = self._passage.cut(chars_max)
        if self._excerpt is None:
            return 0
        self.line = f"{self._label} {escape(self._excerpt.text, self._style)}"
        return len(self.line.encode()) + _AROUND_LINE


def _share(costs: Sequence[int], left: int) -> int:
    """The most that each may cost, so that all fit: what small ones do not need goes to the others."""
    share = left
    for number, cost in enumerate(sorted(costs)):
        share = left // (len(costs) - number)
        if cost > share:
            break
        left -= cost
    return max(share, 0)


def memory_of(scored: Scored) -> Memory:
    """As it is shown, with what it is worth for the query."""
    memory = shown(scored.memory)
    memory.score = scored.score
    memory.lexical = round(scored.parts["lexical"], 4)
    memory.vector = round(scored.parts["window"], 4)
    memory.via = scored.via or None
    return memory


def shown(memory: Candidate) -> Memory:
    return Memory(
        id=f"m{memory.id}",
        kind=memory.kind,  # type: ignore[arg-type]  # the record holds only these kinds
        text=memory.text,
        created_ms=memory.created_ms,
        category=memory.category,
        session_key=memory.session,
        run_ids=memory.runs,
        turn_id=memory.turn_id,
    )
