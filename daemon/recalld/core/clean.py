"""The one sanitiser: what a host or a memory system wrote around a person's words is removed, the words stay.

Capture, recall queries and embeddings all pass through `clean`. It strips; it never rejects a message for one marker.
The list of envelopes is that of OpenClaw 2026.2 to 2026.9 and of the memory systems that inject into it.
"""

from __future__ import annotations

import re

from recalld.core.block import NOTICE, STYLES

TEXT_CHARS_MAX = 65_536  # a longer text keeps its head and its tail; nothing here is quadratic in it

# Pairs of markers with everything between them. Found by plain search, so that hostile input costs no more than its length.
_OWN = tuple((style.opening, style.closing) for style in STYLES.values())
_BLOCKS = (
    *_OWN,
    ("<recalled-context>", "</recalled-context>"),
    ("<hot-memories>", "</hot-memories>"),
    ("<relevant-procedures>", "</relevant-procedures>"),
    ("<recent-history-narratives>", "</recent-history-narratives>"),
    ("<active_memory_plugin>", "</active_memory_plugin>"),
    ("<conversation_context>", "</conversation_context>"),
    ("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>", "<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"),
    ("<<<EXTERNAL_UNTRUSTED_CONTENT>>>", "<<<END_EXTERNAL_UNTRUSTED_CONTENT>>>"),
    ("<!-- memory-hybrid:", "-->"),
    ("<private>", "</private>"),
)

# A block of ours, whole or with its end cut off: its lines are known without it.
_OURS = re.compile(
    rf"(?:{'|'.join(re.escape(opening) for opening, _ in _OWN)})\n{re.escape(NOTICE)}(?:\n- [^\n]*)*"
    rf"(?:\n(?:{'|'.join(re.escape(closing) for _, closing in _OWN)}))?"
)

_HEADINGS = (
    r"(?:Conversation info|Sender|Thread starter|Replied message|Reply chain|Reply target|Forwarded message context"
    r"|Chat history since last reply|Location)"
)
_FENCED = r"```(?:json)?\n(?:(?!```)[^\n]*\n){0,400}?```"
_METADATA = re.compile(
    rf"^{_HEADINGS}(?: [^\n:(]{{0,40}})?(?: ?\(untrusted[^\n)]{{0,60}}\):[ \t]*\n?(?:{_FENCED}|\{{[^\n]*\}})?"
    rf"|[^\n:]{{0,60}}:[ \t]*\n{_FENCED})[ \t]*\n?",
    re.MULTILINE,
)
_PREVIOUS_TURN = re.compile(r"\[Queued user message from a previous active turn;[^\]\n]*\][\s\S]*?(?:\n\n|\Z)")
_RECENT = re.compile(
    r"^Recent memories \(use memory_search[^\n]*\n(?:(?:\[[^\n]*\]|#{2,4} [^\n]*|- [^\n]*)\n?)*", re.MULTILINE
)
_LINES = re.compile(
    r"^(?:⟦openclaw:ctx⟧|\[System\] |System: \[|Untrusted context \(metadata|\[Queued messages while agent was busy\]"
    r"|Continue the current task from the existing transcript|\[message_id: |\[cron:|Current user request:[ \t]*$"
    r"|Current message:[ \t]*$)[^\n]*\n?",
    re.MULTILINE,
)
_STAMP = re.compile(
    r"\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d{4}-\d{2}-\d{2} \d{2}:\d{2}(?::\d{2})?"
    r"(?: [A-Z]{2,5}| GMT[+-]\d{1,2}(?::?\d{2})?)?\][ \t]?"
)
_DIRECTIVES = re.compile(r"\[\[(?:reply_to|audio|media)[^\]\n]{0,120}\]\]|\[media attached[^\]\n]{0,400}\]")
_BLANKS = re.compile(r"\n{3,}")


def clean(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """The words of a person or an agent, without envelopes, stamps, injected blocks and `<private>` spans.

    Idempotent. The result is stripped and at most `chars_max` characters long: a bound set before anything else is done.
    """
    if NOTICE in text:  # before the text is shortened, which could leave a block without its end
        text = _OURS.sub("", text)
    text = shorten(text, chars_max)
    before = None
    while before != text:  # removing one envelope can put another at the start of a line
        before = text
        text = _pass(text)
    return text


def _pass(text: str) -> str:
    if "[" in text:
        text = _STAMP.sub("", text)
        text = _PREVIOUS_TURN.sub("", text)
        text = _DIRECTIVES.sub("", text)
    if NOTICE in text:
        text = _OURS.sub("", text)
    for opening, closing in _BLOCKS:
        text = _strip_block(text, opening, closing)
    text = _METADATA.sub("", text)
    text = _RECENT.sub("", text)
    text = _LINES.sub("", text)
    return _BLANKS.sub("\n\n", text).strip()


def _strip_block(text: str, opening: str, closing: str) -> str:
    """Without each opening-to-closing span. An opening that is never closed loses only its marker, a private one all."""
    start = text.find(opening)
    if start < 0:
        return text
    kept = [text[:start]]
    while start >= 0:
        end = text.find(closing, start + len(opening))
        if end < 0:
            if opening != "<private>":
                kept.append(text[start + len(opening) :].replace(opening, ""))
            break
        after = end + len(closing)
        start = text.find(opening, after)
        kept.append(text[after : start if start >= 0 else len(text)])
    return "".join(kept)


def shorten(text: str, chars_max: int) -> str:
    """At most `chars_max` characters: two thirds from the head, the rest from the tail, ` … ` between."""
    if len(text) <= chars_max:
        return text
    head = chars_max * 2 // 3
    return f"{text[:head]} … {text[len(text) - (chars_max - head - 3) :]}"
