"""What a person sees: on a terminal with colours and folded to its width, in a pipe plain and one line for each thing."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from recalld import config as configuration
from recalld.config import Config
from recalld.doctor import Check

PIPE_COLUMNS = 1_000_000  # nothing is folded or cut where no terminal is
PREVIEW_CHARS = 300
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "partial": "yellow", "error": "bold red"}
# Memories hold what anybody wrote; without this, a stored escape sequence would command the reader's terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

Row = Mapping[str, Any]


def console() -> Console:
    wide = None if sys.stdout.isatty() else PIPE_COLUMNS
    return Console(width=wide, highlight=False, emoji=False, markup=False)


def show(*things: RenderableType) -> None:
    """Print, without the blanks that a table puts at the ends of lines."""
    out = console()
    with out.capture() as captured:
        out.print(*things, sep="\n")
    text = captured.get()
    if not out.is_terminal:
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    sys.stdout.write(text)
    sys.stdout.flush()


def dump(value: Any, *, lines: bool = False) -> None:
    """JSON on standard output: readable, or one line for each call."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=None if lines else 2) + "\n")
    sys.stdout.flush()


def plain(text: object) -> str:
    """A text from elsewhere that cannot do anything to a terminal."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(text))


def one_line(text: object, chars: int = PREVIEW_CHARS) -> str:
    joined = " ".join(plain(text).split())
    return joined if len(joined) <= chars else f"{joined[: chars - 1]}…"


def toggles(result: Row, session: str | None) -> None:
    lines = [f"memory is {result['global']} everywhere"]
    if session:
        lines.append(f"memory is {result['session']} in {plain(session)}")
    if session and result["global"] == "off" and result["session"] == "on":
        lines[1] += ", once it is on everywhere"
    show(*map(Text, lines))


# -- status


def status(result: Row) -> None:
    daemon = result["daemon"]
    show(
        Text.assemble(
            (f"{daemon['name']} {daemon['version']}", "bold"),
            f"  up {duration(result['uptime_s'])}, data in {plain(result['data_dir'])}",
        )
    )
    for fault in result["faults"]:
        show(Text(f"fault: {plain(fault)}", style="bold red"))
    if result["agents"]:
        show(Text(), _agents(result["agents"]))
    skipped = sum(n for k, n in result["recalls"].items() if k.startswith("skipped:"))
    facts: list[tuple[str, str | Text]] = [
        ("recalls", counts({k: n for k, n in result["recalls"].items() if ":" not in k})),
        ("skipped", counts(_after(result["recalls"], "skipped:")) if skipped else ""),
        ("problems", counts({**_after(result["recalls"], "partial:"), **_after(result["recalls"], "error:")})),
        ("latency", ", ".join(f"{name} {ms:g} ms" for name, ms in result["latency_ms"].items())),
        ("shortcuts", counts({k: n for k in ("cached", "shared") if (n := result.get(f"recalls_{k}", 0))})),
        ("not logged", str(result.get("recalls_unlogged") or "")),
        ("late", Text(str(result["late"]), style="bold red" if result["late"] else "green")),
        ("open turns", str(result["open_turns"])),
        ("no vector yet", str(result["vectors_waiting"]) if result.get("vectors_waiting") else ""),
        ("events", counts(result["events"])),
        ("ignored", counts(result["ignored"])),
        ("errors", counts(result["errors"])),
    ]
    table = grid()
    for name, value in facts:
        if value:
            table.add_row(Text(name, style="dim"), value if isinstance(value, Text) else Text(value))
    show(Text(), table)


def _agents(agents: Mapping[str, Row]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("agent")
    for name in ("memories", "seen", "captured", "skipped"):
        table.add_column(name, justify="right")
    table.add_column("")
    for name, entry in sorted(agents.items()):
        skipped: Mapping[str, int] = entry.get("skipped") or {}
        seen, captured, left = entry.get("seen", 0), entry.get("captured", 0), sum(skipped.values())
        table.add_row(
            Text(plain(name), style="bold"),
            str(entry.get("memories", 0)),
            Text(str(seen), style="" if seen == captured + left else "bold red"),
            str(captured),
            str(left),
            Text(counts(skipped)),
        )
    return table


def _after(values: Mapping[str, int], prefix: str) -> dict[str, int]:
    return {k.removeprefix(prefix): n for k, n in values.items() if k.startswith(prefix)}


def counts(values: Mapping[str, int]) -> str:
    """Counted things, the most frequent first."""
    ordered = sorted(values.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{plain(name)} {n}" for name, n in ordered)


def duration(seconds: float) -> str:
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    if minutes < 1:
        return f"{seconds:.0f} s"
    if hours < 1:
        return f"{minutes:.0f} min"
    return f"{hours:.1f} h" if days < 2 else f"{days:.1f} days"


# -- memories


def memories(result: Row) -> None:
    table = grid()
    for memory in result["memories"]:
        score = memory.get("score")
        head = Text.assemble((plain(memory["id"]), "bold"), (f"  {score:.2f}" if score is not None else "", "cyan"))
        table.add_row(head, Text(day(memory["created_ms"]), style="dim"), _kind(memory), Text(one_line(memory["text"])))
    show(table if table.row_count else Text("nothing found", style="dim"))
    if result["status"] == "partial":
        show(Text("one of the two searches was late; there may be more", style="yellow"))


def memory(result: Row) -> None:
    found, turn = result["memory"], result.get("turn")
    table = grid()
    table.add_row(
        Text(plain(found["id"]), style="bold"), Text.assemble(_kind(found), f", {moment(found['created_ms'])}")
    )
    table.add_row(Text("text", style="dim"), Text(plain(found["text"])))
    for name, value in result.get("attributes", {}).items():
        shown = moment(value) if name == "expires_ms" else value
        table.add_row(Text(name.removesuffix("_ms").replace("_", " "), style="dim"), Text(plain(str(shown))))
    if result.get("uses"):
        used = f"{result['uses']} times, last on {moment(result['last_used_ms'])}"
        table.add_row(Text("injected", style="dim"), Text(used))
    if turn:
        runs = ", ".join(turn["run_ids"])
        table.add_row(Text("session", style="dim"), Text(plain(turn["session"])))
        about = f"{turn['id']}, {turn['status']}, closed by {turn['closed_by']}" + (f", run {runs}" if runs else "")
        table.add_row(Text("turn", style="dim"), Text(plain(about)))
        for name in ("user", "assistant", "transcript"):
            if turn.get(name):
                table.add_row(Text(name, style="dim"), Text(plain(turn[name])))
    show(table)


def _kind(memory: Row) -> Text:
    category = memory.get("category")
    return Text(plain(memory["kind"] if category in (None, memory["kind"]) else f"{memory['kind']}/{category}"))


def day(ms: int) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(ms / 1000))


def moment(ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(ms / 1000))


# -- the bus


def message(topic: str, payload: Row) -> None:
    kind = str(payload.get("type", "?"))
    outcome = str(payload.get("status") or payload.get("outcome") or ("error" if kind == "error" else ""))
    when = time.strftime("%H:%M:%S", time.localtime(payload.get("ts", 0) / 1000))
    show(
        Text.assemble(
            (when, "dim"),
            "  ",
            plain(payload.get("src") or topic),
            "  ",
            (f"{plain(kind):<8}", "bold"),
            "  ",
            Text(one_line(_essentials(kind, payload)), style=STYLES.get(outcome, "")),
        )
    )


def _essentials(kind: str, p: Row) -> str:
    reason = f" ({p['reason']})" if p.get("reason") else ""
    ids = ", ".join(m["id"] if isinstance(m, dict) else str(m) for m in p.get("memories", []))
    if kind == "context":
        held = f", {p.get('tokens', 0)} tokens: {ids}" if ids else ""
        return f"{p.get('status')}{reason} in {p.get('elapsed_ms')} ms{held}"
    if kind == "captured":
        turn = p.get("turn", {})
        again = f", revision {p['revision']}" if p.get("revision") else ""
        made = f": {ids}" if ids else ""
        about = f"turn {turn.get('id')} of {turn.get('session')}, by {turn.get('closed_by')}"
        return f"{p.get('outcome')}{reason} {about}{again}{made}"
    if kind == "ack":
        gap = "" if p.get("highest") == p.get("upto") else f", highest {p.get('highest')}"
        return f"upto {p.get('upto')}{gap}"
    if kind == "welcome":
        return f"recalld {p.get('daemon', {}).get('version')}, upto {p.get('upto')}"
    if kind == "error":
        return f"{p.get('code')}: {p.get('message')}"
    return json.dumps({k: v for k, v in p.items() if k not in ("v", "type", "src", "ts", "id")}, ensure_ascii=False)


# -- doctor


def check(found: Check) -> None:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=4)
    table.add_column(min_width=16)
    table.add_column()
    table.add_row(
        Text(found.outcome, style=STYLES[found.outcome]), Text(plain(found.name)), Text(one_line(found.detail, 600))
    )
    if found.remedy and found.outcome != "ok":
        table.add_row("", "", Text(f"→ {plain(found.remedy)}", style="italic"))
    show(table)


def verdict(found: list[Check]) -> None:
    fails = sum(c.outcome == "fail" for c in found)
    warns = sum(c.outcome == "warn" for c in found)
    if fails or warns:
        parts = [f"{n} {name}{'s' if n > 1 else ''}" for n, name in ((fails, "failure"), (warns, "warning")) if n]
        show(Text(), Text(" and ".join(parts), style=STYLES["fail" if fails else "warn"]))
    else:
        show(Text(), Text("everything is well", style=STYLES["ok"]))


# -- configuration


def settings(config: Config, origins: Mapping[str, str]) -> None:
    """The effective configuration as TOML, with where each key was set."""
    tables: dict[str, dict[str, Any]] = {"": {}}
    for key, value in config_values(config).items():
        if value and isinstance(value, dict):
            tables[key] = value
        else:
            tables[""][key] = value
    lines = [
        (name, f"{_toml_key(key)} = {toml_value(value)}", f"{name}.{key}".lstrip("."))
        for name, table in tables.items()
        for key, value in table.items()
    ]
    width = min(48, max(len(line) for _, line, _ in lines))
    before = ""
    for name, line, key in lines:
        if name != before:
            show(Text(), Text(f"[{name}]", style="bold"))
            before = name
        origin = origins.get(key) or next((o for k, o in origins.items() if k.startswith(f"{key}.")), "default")
        show(
            Text.assemble(plain(f"{line:<{width}}"), (f"  # {plain(origin)}", "dim" if origin == "default" else "cyan"))
        )


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def toml_value(value: Any) -> str:
    """TOML writes text and numbers as JSON does, but for one control character."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_key(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def config_values(config: Config) -> dict[str, Any]:
    """The configuration as a tree of tables."""
    values: dict[str, Any] = msgspec.to_builtins(config)
    return values


def origins_of(config: Config, origins: Mapping[str, str]) -> dict[str, str]:
    return {key: origins.get(key, "default") for key, _ in configuration.flat(config_values(config))}


def grid() -> Table:
    return Table.grid(padding=(0, 2, 0, 0))
