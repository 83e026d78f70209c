"""How answers came about, for a person: one explained, the latest listed, one beside itself under other settings."""

from __future__ import annotations

import sys

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from recalld import config as configuration
from recalld.core.pack import RecallSettings
from recalld.render import STYLES, Row, grid, moment, one_line, plain, show, toml_value

QUERY_CHARS = 120
CANDIDATE_CHARS = 160
BOUNDS = ("floor", "items_max", "tokens_max")
GIVEN = ("injected", "cold_start")


def recalls(result: Row) -> None:
    """A list of logged recalls, to choose one from."""
    table = grid()
    for recall in result["recalls"]:
        table.add_row(
            Text(plain(recall["id"]), style="bold"),
            Text(moment(recall["at_ms"]), style="dim"),
            _outcome(recall),
            Text(f"{recall['elapsed_ms']:.1f} ms"),
            Text(one_line(recall["query"], QUERY_CHARS)),
        )
    show(table)


def explained(recall: Row) -> None:
    """One answer: what was asked, how long each stage took, and every candidate."""
    how = {"cache": ", found a moment before", "shared": ", found together with another"}.get(recall["source"], "")
    injected = sum(c["verdict"] in GIVEN for c in recall["candidates"])
    about = Text.assemble(_outcome(recall), f", {injected} injected, {recall.get('tokens', 0)} tokens{how}")
    stages = sorted(recall["stages"].items(), key=lambda item: item[1])
    times = [*(f"{plain(stage)} {ms:.1f}" for stage, ms in stages), f"sent {recall['elapsed_ms']:.1f}"]
    table = _head(recall)
    for name, value in (
        ("answer", about),
        ("ms until", Text(", ".join(times))),
        ("settings", Text(_values(recall["settings"]))),
    ):
        table.add_row(Text(name, style="dim"), value)
    show(table, Text(), _candidates(recall["candidates"]))


def _head(recall: Row) -> Table:
    place = f"{recall['session']}, run {recall['run_id']}" if recall.get("run_id") else recall["session"]
    table = grid()
    for name, value in (
        (plain(recall["id"]), f"{moment(recall['at_ms'])}, {plain(place)}"),
        ("prompt", one_line(recall["query"])),
        ("after", one_line(recall.get("context", ""))),
    ):
        if value:
            table.add_row(Text(name, style="dim"), Text(value))
    return table


def _values(settings: Row) -> str:
    """What bounds an answer, and what is not at its default."""
    usual: Row = msgspec.json.decode(msgspec.json.encode(RecallSettings()))
    shown = {k: v for k, v in settings.items() if k in BOUNDS or v != usual.get(k)}
    return ", ".join(f"{plain(name)} {plain(toml_value(value))}" for name, value in shown.items())


def _outcome(recall: Row) -> Text:
    status = str(recall["status"])
    reason = f" ({plain(recall['reason'])})" if recall.get("reason") else ""
    return Text(f"{plain(status)}{reason}", style=STYLES.get(status, ""))


def _candidates(found: list[Row]) -> RenderableType:
    if not found:
        return Text("nothing was found", style="dim")
    table = _table()
    table.add_column("memory", no_wrap=True)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("text, and what the score is made of")
    apart = "\n" if sys.stdout.isatty() else "  "
    for c in found:
        injected = c["verdict"] in GIVEN
        parts = ", ".join(f"{plain(name)} {value:.2f}" for name, value in c["parts"].items() if round(value, 2))
        via = f"; {plain(c['via'])}" if c.get("via") else ""
        table.add_row(
            Text(plain(c["id"]), style="bold" if injected else ""),
            Text(f"{c['score']:.2f}", style="cyan"),
            Text(plain(c["verdict"]), style="green" if injected else "yellow"),
            Text.assemble(_preview(c), (f"{apart}{parts}{via}", "dim")),
        )
    return table


def _preview(candidate: Row) -> Text:
    if candidate.get("text") is None:
        return Text("(it does not exist any more)", style="dim italic")
    return Text(one_line(candidate["text"], CANDIDATE_CHARS))


def replayed(result: Row) -> None:
    """Both answers side by side: what was injected in either, and what became of it in the other."""
    then, now = result["then"], result["now"]
    show(_head(then), Text())
    sides = _table()
    for name in ("", "then", "now"):
        sides.add_column(name)
    for name, one, other in (
        ("answer", _outcome(then), _outcome(now)),
        ("tokens", Text(str(then.get("tokens", 0))), Text(str(now.get("tokens", 0)))),
        ("found", Text(str(len(then["candidates"]))), Text(str(len(now["candidates"])))),
        *_differences(then["settings"], now["settings"]),
    ):
        sides.add_row(Text(name, style="dim"), one, other)
    show(sides, Text(), _changes(result))


def _differences(then: Row, now: Row) -> list[tuple[str, Text, Text]]:
    before, after = dict(configuration.flat(then)), dict(configuration.flat(now))
    return [
        (
            name,
            Text(toml_value(before[name]) if name in before else "-"),
            Text(toml_value(after[name]) if name in after else "-"),
        )
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def _changes(result: Row) -> RenderableType:
    then = {c["id"]: c for c in result["then"]["candidates"]}
    now = {c["id"]: c for c in result["now"]["candidates"]}
    shown = [i for i, c in now.items() if c["verdict"] in GIVEN]
    if not shown and not result["left"]:
        return Text("nothing was injected, then or now", style="dim")
    table = _table()
    for name in ("", "memory", "then", "now"):
        table.add_column(name, no_wrap=True)
    table.add_column("text")
    for memory_id in [*shown, *result["left"]]:
        change, style = "stayed", "dim"
        if memory_id in result["entered"]:
            change, style = "entered", "green"
        elif memory_id in result["left"]:
            change, style = "left", "red"
        table.add_row(
            Text(change, style=style),
            Text(plain(memory_id), style="bold"),
            _judged(then.get(memory_id)),
            _judged(now.get(memory_id)),
            _preview(now.get(memory_id) or then[memory_id]),
        )
    return table


def _judged(candidate: Row | None) -> Text:
    if candidate is None:
        return Text("not found", style="dim")
    return Text.assemble((f"{candidate['score']:.2f}", "cyan"), f" {plain(candidate['verdict'])}")


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
