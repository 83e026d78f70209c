"""Prompt styles: how eager recall is, as a preset over the settings that were not chosen one by one."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct
from msgspec.structs import replace

from recalld.core.pack import ITEMS_MAX, RecallSettings


class Style(Struct, frozen=True):
    """`floor` and `items` multiply the defaults of `recall.floor` and `recall.items_max`. `categories`: the only ones
    that are injected; empty means all, and memories without one."""

    floor: float = 1.0
    items: float = 1.0
    categories: tuple[str, ...] = ()


# `balanced` is the defaults as measured (ARCHITECTURE.md, "Ranking"); the others are steps on both sides of them.
STYLES: dict[str, Style] = {
    "balanced": Style(),
    "strict": Style(floor=1.1, items=0.6),
    "precision-heavy": Style(floor=1.25, items=0.4),
    "contextual": Style(floor=0.95, items=1.4),
    "recall-heavy": Style(floor=0.85, items=2.0),
    "preference-only": Style(floor=0.9, categories=("preference", "rule")),
}
SET = ("floor", "items_max", "categories")  # by a style
BY_MODE = {"message": "balanced", "recent": "balanced", "full": "contextual"}


def resolve(settings: RecallSettings, chosen: Collection[str]) -> RecallSettings:
    """The settings with their style in them. `chosen`: names of the fields that were configured, which it leaves alone."""
    style = STYLES[settings.style or BY_MODE[settings.query_mode]]
    styled = {
        "floor": round(settings.floor * style.floor, 4),
        "items_max": min(ITEMS_MAX, max(1, round(settings.items_max * style.items))),
        "categories": style.categories,
    }
    return replace(settings, **{name: value for name, value in styled.items() if name not in chosen})
