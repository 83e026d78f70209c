"""What is searched for a prompt: the asker's own words, and what was said just before where they cannot stand alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct

from recalld.core.clean import clean, shorten
from recalld.core.signals import text_of
from recalld.core.words import FUNCTION_WORDS, terms
from recalld.wire.messages import QUERY_CHARS_MAX

MESSAGES_MAX = 1_000  # of a history, from its end: a turn with many tool calls has hundreds
RAW_CHARS_MAX = 25_000  # of a history before it is cleaned, in all; hosts were seen to send 690,000
PART_CHARS_MIN = 40  # what is left of the bound is not filled with less of a turn
FOLLOW_CHARS_MAX = 160  # a longer prompt says itself what it is about
FOLLOW_TERMS_MAX = 8
QUESTION_MARKS = "?？"

QueryMode = Literal["message", "recent", "full"]
PartChars = Annotated[int, Meta(ge=40, le=1_000)]


class QuerySettings(Struct, frozen=True):
    """How much of what was said before is taken. `message`: only for a prompt that cannot stand alone; `recent`: always;
    `full`: all there is, within QUERY_CHARS_MAX. Turns and characters of each bound the first two."""

    query_mode: QueryMode = "message"
    recent_user_turns: Annotated[int, Meta(ge=0, le=4)] = 2
    recent_assistant_turns: Annotated[int, Meta(ge=0, le=3)] = 1
    recent_user_chars: PartChars = 220
    recent_assistant_chars: PartChars = 180


class Query(Struct, frozen=True):
    """`text`: the asker's own words. `context`: those of recent turns, oldest first, which help at a lower weight.
    Together at most QUERY_CHARS_MAX characters."""

    text: str
    context: str = ""


class Said(NamedTuple):
    """A message of a conversation. `role` is `user` or `assistant`."""

    role: str
    text: str


def history(messages: Sequence[Any]) -> Iterator[Said]:
    """What a host's list of messages says, newest first. Other roles, and messages without text, are passed over."""
    for message in islice(reversed(messages), MESSAGES_MAX):
        if isinstance(message, dict) and (role := message.get("role")) in ("user", "assistant"):
            text = text_of(message.get("content"))
            if text:
                yield Said(role, text)


def wants_context(prompt: str, settings: QuerySettings) -> bool:
    return settings.query_mode != "message" or not stands_alone(prompt)


def build(
    prompt: str, newest_first: Iterable[Said], settings: QuerySettings, is_control: Callable[[str], bool]
) -> Query:
    """The query of a cleaned prompt. Of what was said before, each part is cleaned, and left out where it is the prompt
    again (histories that hold it already) or control text."""
    whole = settings.query_mode == "full"
    left = {
        "user": MESSAGES_MAX if whole else settings.recent_user_turns,
        "assistant": MESSAGES_MAX if whole else settings.recent_assistant_turns,
    }
    chars = {
        "user": QUERY_CHARS_MAX if whole else settings.recent_user_chars,
        "assistant": QUERY_CHARS_MAX if whole else settings.recent_assistant_chars,
    }
    parts: list[str] = []
    room, raw = QUERY_CHARS_MAX - len(prompt), RAW_CHARS_MAX
    answered = False
    for said in newest_first:
        if min(room, raw) < PART_CHARS_MIN or not any(left.values()):
            break
        if said.role == "assistant" and answered:
            continue  # the text between tool calls; the last one is the answer
        answered = said.role == "assistant"
        if not left[said.role]:
            continue
        text = shorten(said.text, min(raw, QUERY_CHARS_MAX))
        raw -= len(text)
        text = clean(text)
        if not text or text == prompt or is_control(text):
            continue
        parts.append(shorten(text, min(chars[said.role], room)))
        left[said.role] -= 1
        room -= len(parts[-1]) + 1
    return Query(prompt, "\n".join(reversed(parts)))


def stands_alone(prompt: str) -> bool:
    """Whether a prompt says itself what it is about, by its shape: not where it has no content words, where it is a
    fragment of two words, or where it is short and points back (a pronoun, an opening such as "and" or "what about").

    Function words are known for English. In another language all words are content, and only a fragment depends.
    """
    if len(prompt) > FOLLOW_CHARS_MAX:
        return True
    words = terms(prompt)
    if len(words) > FOLLOW_TERMS_MAX:
        return True
    content = sum(word not in _FUNCTION for word in words)
    if content == 0 and words and words[0] in _GREETINGS and not any(mark in prompt for mark in QUESTION_MARKS):
        return True  # "thanks" points nowhere
    if content == 0 or len(words) <= 2:
        return False
    points_back = words[0] in _OPENINGS or tuple(words[:2]) in _OPENING_PAIRS or not _BACKWARD.isdisjoint(words)
    return content > 2 or not points_back


def _terms(text: str) -> frozenset[str]:
    return frozenset(terms(text))


_BACKWARD = _terms(
    "he him his she her hers it its they them their theirs himself herself itself themselves this that these those"
    " one ones there then same other others another latter former"
)
_OPENINGS = _terms("and but or so also then because plus otherwise instead")
_GREETINGS = _terms("thanks thank hello hi hey bye goodbye great good nice cheers welcome")
_OPENING_PAIRS = frozenset({("what", "about"), ("how", "about"), ("what", "of"), ("what", "els")})
_FUNCTION = (
    _BACKWARD
    | _OPENINGS
    | _GREETINGS
    | FUNCTION_WORDS
    | _terms(
        # determiners, numbers, pronouns of those who speak
        "each every both all none either neither more most few less least such"
        " first second third last next previous two three myself yours yourself ours"
        " someone something anyone anything everyone everything nobody nothing things stuff"
        # questions
        " whether"
        # auxiliaries, and verbs that say nothing by themselves
        " doing"
        " ought isn aren wasn weren don doesn didn haven hasn hadn couldn wouldn shouldn won ain"
        " go goes going went gone get gets got come comes came happen happens happened happening mean means meant"
        " say says said tell tells told know knows knew think thinks thought see let make makes made"
        # prepositions, adverbs, conjunctions
        " without between under above up down out off"
        " again only too really quite even still yet already now else ever never maybe"
        # what keeps a conversation going
        " yeah yep nope ok okay sure please well right hm hmm oh ah"
        " exactly actually continue explain elaborate detail details example repeat"
    )
)
