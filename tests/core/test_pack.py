"""The injected block: within its budget, with the part of a long memory that answers, the same bytes for the same memories."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recalld.core.block import STYLES, BlockStyle, block
from recalld.core.pack import BULLET_CHARS_MAX, LONG_CHARS, Packed, RecallSettings, pack, tokens
from recalld.core.scored import Candidate, Ranked, Scored
from recalld.core.words import terms

SETTINGS = RecallSettings()
DAY_MS = 1_700_000_000_000


def memory(n: int, text: str = "words", score: float = 1.0, turn: int | None = None, kind: str = "turn") -> Scored:
    return Scored(Candidate(n, turn, kind, None, text, DAY_MS, None, []), score, {"lexical": 0.0, "window": 0.0})


def asked(query: str) -> dict[str, float]:
    return dict.fromkeys(terms(query), 5.0)


def packed(*memories: Scored, settings: RecallSettings = SETTINGS, query: str = "") -> Packed:
    return pack(memories, settings, asked(query))


def ids(found: Packed) -> list[str]:
    return [m.id for m in found.memories]


def test_nothing_chosen_is_no_block() -> None:
    assert packed() == Packed()


def test_a_memory_that_is_too_long_is_shortened_and_does_not_stop_the_others() -> None:
    found = packed(memory(1, "A long sentence. " * 500), memory(2, "short"))
    assert ids(found) == ["m1", "m2"]
    assert "A long sentence. …\n" in found.text
    tiny = RecallSettings(tokens_max=64)
    found = packed(memory(1, "x" * 300), memory(2, "short"), settings=tiny)
    assert ids(found) == ["m1", "m2"]
    assert ids(packed(*(memory(n, "y" * 300) for n in range(1, 6)), settings=tiny)) == ["m1"]


def test_what_cannot_be_shortened_is_passed_over_not_those_behind_it() -> None:
    frame = len(block([], "relevant-memories"))
    tiny = RecallSettings(tokens_max=frame + 152, token_bytes=1)
    long = memory(1, "z" * 300)
    shorts = [memory(n, f"Cat {n}.") for n in range(2, 5)]
    assert ids(packed(long, *shorts, settings=tiny)) == ["m2", "m3", "m4"]


def test_the_part_that_answers_is_kept_wherever_it_is() -> None:
    filler = "We talked about the weather again. It was grey all day. Nobody went out. "
    answer = "The spare key hangs behind the boiler."
    for at in range(0, 40, 13):
        parts = [filler] * 40
        parts[at] = f"Then something else. {answer} That was all. "
        text = f"Ada: {''.join(parts)}\nBo: {filler * 10}"
        found = packed(*(memory(n, text, turn=n) for n in range(1, 6)), query="where does the spare key hang")
        assert found.text.count(answer) == 5
        assert found.text.count("Ada: ") == 5
        assert found.tokens <= SETTINGS.tokens_max


def test_of_a_long_text_that_holds_no_term_of_the_query_the_head_is_kept() -> None:
    text = " ".join(f"Sentence number {n} of it." for n in range(500))
    line = packed(memory(1, text), query="quantum").text.splitlines()[2]
    assert line.startswith("- [m1 2023-11-14 turn] Sentence number 0 of it. Sentence number 1 of it.")
    assert line.endswith("of it. …")
    assert " … " not in line


def test_a_memory_has_a_bound_of_its_own() -> None:
    settings = RecallSettings(memory_chars_max=60)
    line = packed(memory(1, "First thing. " * 20), settings=settings).text.splitlines()[2]
    assert len(line) <= len("- [m1 2023-11-14 turn] ") + 60


def test_a_summary_stands_for_a_long_text_and_only_for_one() -> None:
    long, short = memory(1, "word " * LONG_CHARS), memory(2, "A short one.")
    long.memory.summary = "Words, many of them."
    short.memory.summary = "Something shorter."
    found = packed(long, short)
    assert "turn] Words, many of them.\n" in found.text
    assert "A short one." in found.text
    assert found.memories[0].text == long.memory.text


def test_a_token_is_what_the_configuration_says() -> None:
    text = "The tyres are in the barn. " * 200
    sizes = [len(packed(memory(1, text), settings=RecallSettings(token_bytes=n)).text.encode()) for n in (2, 4, 6)]
    assert sizes == sorted(set(sizes))
    settings = RecallSettings(token_bytes=2)
    assert packed(memory(1, text), settings=settings).tokens <= settings.tokens_max
    assert tokens("12345", 4) == 2
    assert tokens("12345", 5) == 1


def test_the_block_says_what_it_is() -> None:
    text = packed(memory(7, "Ada: I live in Bergen.\nBo: Noted.")).text
    assert text.splitlines()[0] == STYLES["relevant-memories"].opening
    assert "Untrusted" in text.splitlines()[1]
    assert text.splitlines()[2] == "- [m7 2023-11-14 turn] Ada: I live in Bergen. / Bo: Noted."
    assert text.splitlines()[-1] == STYLES["relevant-memories"].closing


def test_the_same_memories_are_the_same_bytes() -> None:
    found = [memory(n, f"Memory number {n}.", score=n / 10) for n in (3, 1, 2)]
    stable = RecallSettings(order="stable")
    assert packed(*found, settings=stable).text == packed(*reversed(found), settings=stable).text
    assert packed(*found).text == packed(*found).text != packed(*reversed(found)).text
    best_first = packed(*found, settings=stable)
    assert ids(best_first) == ["m3", "m1", "m2"]
    assert [line[2:5] for line in best_first.text.splitlines()[2:5]] == ["[m1", "[m2", "[m3"]


def newest(count: int) -> list[Candidate]:
    return [memory(n, f"Bullet number {n}. " * 30, kind="note").memory for n in range(100 + count, 100, -1)]


def test_a_digest_is_short_lines_within_its_own_budget() -> None:
    settings = RecallSettings(cold_start_tokens=128)
    found = pack([], settings, {}, newest(20))
    lines = found.text.splitlines()[2:-1]
    assert ids(found) == [f"m{n}" for n in range(120, 120 - len(lines), -1)]
    assert sum(len(line) + 1 for line in lines) <= 128 * 4
    assert all(line.startswith("- [m") for line in lines)
    assert all(len(line) < BULLET_CHARS_MAX + 40 for line in lines)
    assert "Untrusted" in found.text


def test_what_was_found_goes_before_a_digest() -> None:
    answer = memory(99, "The answer.")
    found = pack([answer], SETTINGS, {}, newest(3))
    assert ids(found) == ["m99", "m103", "m102", "m101"]
    full = RecallSettings(tokens_max=76)
    found = pack([answer, *(memory(n, "z" * 300) for n in range(90, 94))], full, {}, newest(3), "A hint.")
    assert set(ids(found)) < {"m99", "m90", "m91", "m92", "m93"}
    assert "A hint." not in found.text


def test_a_hint_is_one_line() -> None:
    found = pack([], SETTINGS, {}, hint="7 memories are kept.")
    assert found.text.splitlines()[2:-1] == ["- 7 memories are kept."]
    assert found.memories == []


@pytest.mark.parametrize("style", STYLES)
@given(
    texts=st.lists(st.text(max_size=2_000), min_size=1, max_size=8),
    tokens_max=st.integers(64, 900),
    token_bytes=st.integers(1, 8),
    query=st.text(max_size=50),
)
def test_within_budget_one_line_each(
    style: BlockStyle, texts: list[str], tokens_max: int, token_bytes: int, query: str
) -> None:
    settings = RecallSettings(tokens_max=tokens_max, token_bytes=token_bytes, block=style)
    found = packed(*(memory(n + 1, t) for n, t in enumerate(texts)), settings=settings, query=f"{query} {texts[0]}")
    assert found.tokens == tokens(found.text, token_bytes) <= tokens_max
    if found.memories:
        assert len(found.text.split("\n")) == len(found.memories) + 3


def test_what_has_no_place_says_so() -> None:
    long = [memory(n, "y" * 300) for n in range(1, 6)]
    packed = pack(long, RecallSettings(tokens_max=64), {})
    held = {m.id for m in packed.memories}
    assert 0 < len(held) < len(long)
    assert all((scored.verdict == "budget") == (f"m{scored.memory.id}" not in held) for scored in long)
    injected = {int(i[1:]) for i in held}
    assert {c.verdict for c in Ranked(long).judged(injected)} == {"injected", "budget"}
