"""The command line: parse, make a Config, call. What is shown is made in `render`, what is found out elsewhere."""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import recalld
from recalld import config
from recalld.config import Config
from recalld.errors import ConfigError, RecalldError

# Commands import what they need themselves: most of it takes longer to load than `--version` or `store` take.

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(no_args_is_help=True, help="Look at the configuration.")
service_app = typer.Typer(no_args_is_help=True, help="Have systemd start the daemon with your session.")
app.add_typer(config_app, name="config")
app.add_typer(service_app, name="service")

ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Configuration file.")]
DataDir = Annotated[str | None, typer.Option("--data-dir", metavar="DIR", help="Folder of the database.")]
RuntimeDir = Annotated[str | None, typer.Option("--runtime-dir", metavar="DIR", help="Folder of the sockets.")]
REINDEX_SECONDS = 3_600.0

Json = Annotated[bool, typer.Option("--json", help="For programs: JSON on standard output.")]
Agent = Annotated[str, typer.Option("--agent", metavar="NAME", help="Whose memories.", show_default=True)]
MemoryId = Annotated[str, typer.Argument(metavar="ID", help="Such as m12.")]
RecallId = Annotated[str | None, typer.Argument(metavar="ID", help="Such as r12; else the latest.")]
Session = Annotated[str | None, typer.Option("--session", metavar="KEY", help="The latest of this session key.")]
Force = Annotated[bool, typer.Option("--force", help="Even where a person changed the unit.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"recalld {recalld.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """recalld, the recall daemon: a memory for AI agents."""


@app.command()
def run(
    file: ConfigFile = None,
    data_dir: DataDir = None,
    runtime_dir: RuntimeDir = None,
    log_level: Annotated[
        str | None, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
    ] = None,
) -> None:
    """Run the daemon, until SIGTERM or Ctrl-C. A second one does not wait for open turns."""
    from recalld import log
    from recalld.service import app as service

    flags = {"data_dir": data_dir, "runtime_dir": runtime_dir, "log_level": log_level}
    loaded = config.load(file, flags)
    log.configure(loaded.log_level)
    service.run(loaded, lambda: config.load(file, flags))


@app.command()
def status(file: ConfigFile = None, runtime_dir: RuntimeDir = None, as_json: Json = False) -> None:
    """Show what the daemon did since its start, and what is wrong."""
    from recalld import render
    from recalld.edge import caller

    with caller.daemon(_load(file, runtime_dir).runtime_path) as client:
        result = client.status()
    render.dump(result) if as_json else render.status(result)


@app.command()
def doctor(
    file: ConfigFile = None,
    data_dir: DataDir = None,
    runtime_dir: RuntimeDir = None,
    repair: Annotated[bool, typer.Option("--repair", help="Remove damaged indexes; they are made anew.")] = False,
    as_json: Json = False,
) -> None:
    """Look at everything that the daemon needs, and say what to do. Exit code 1 where something fails."""
    import msgspec

    from recalld import render
    from recalld.doctor import Doctor

    found = []
    for check in Doctor(file, {"data_dir": data_dir, "runtime_dir": runtime_dir}, repair=repair).examine():
        found.append(check)
        if not as_json:
            render.check(check)
    ok = all(check.outcome != "fail" for check in found)
    render.dump({"ok": ok, "checks": msgspec.to_builtins(found)}) if as_json else render.verdict(found)
    if not ok:
        raise typer.Exit(1)


@app.command()
def search(
    query: str,
    agent: Agent = "main",
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many at most.")] = 10,
    file: ConfigFile = None,
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Find memories, best first, without a floor."""
    from recalld import render
    from recalld.edge import caller

    with caller.daemon(_load(file, runtime_dir).runtime_path) as client:
        result = client.search(query, {"agent_id": agent}, limit)
    render.dump(result) if as_json else render.memories(result)


@app.command()
def show(
    memory_id: MemoryId,
    agent: Agent = "main",
    file: ConfigFile = None,
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Show one memory and the turn that it came from."""
    from recalld import render
    from recalld.edge import caller

    with caller.daemon(_load(file, runtime_dir).runtime_path) as client:
        result = client.get(_memory_id(memory_id), {"agent_id": agent})
    render.dump(result) if as_json else render.memory(result)


@app.command()
def store(
    text: Annotated[str, typer.Argument(help="What to remember; - reads it from standard input.")],
    agent: Agent = "main",
    category: Annotated[str, typer.Option(metavar="NAME", help="A word for what it is.")] = "note",
    importance: Annotated[float | None, typer.Option(min=0, max=1, help="0 to 1; 0.5 if not said.")] = None,
    decay: Annotated[
        str | None,
        typer.Option(metavar="CLASS", help="How fast its age tells: permanent, durable, normal, short or ephemeral."),
    ] = None,
    pinned: Annotated[bool | None, typer.Option("--pin/--unpin", help="It never expires.")] = None,
    entity: Annotated[str | None, typer.Option(metavar="NAME", help="Whom or what it is about.")] = None,
    file: ConfigFile = None,
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Remember a text."""
    from recalld import render
    from recalld.edge import caller

    text = sys.stdin.read() if text == "-" else text
    with caller.daemon(_load(file, runtime_dir).runtime_path) as client:
        result = client.store(
            text, {"agent_id": agent}, category, importance=importance, decay=decay, pinned=pinned, entity=entity
        )
    if as_json:
        render.dump(result)
    else:
        typer.echo(f"{result['id']} stored" if result["stored"] else f"{result['id']} holds the same text already")


@app.command()
def forget(
    memory_id: MemoryId,
    agent: Agent = "main",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    file: ConfigFile = None,
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Forget a memory. Forgetting a turn forgets its text and all that was drawn from it."""
    from recalld import render
    from recalld.edge import caller

    ctx, wanted = {"agent_id": agent}, _memory_id(memory_id)
    runtime = _load(file, runtime_dir).runtime_path
    if not yes:
        if as_json or not sys.stdin.isatty() or not sys.stdout.isatty():
            raise RecalldError(f"nobody can be asked whether to forget {wanted}: say --yes if it shall go")
        with caller.daemon(runtime) as client:  # not held while a person thinks
            found = client.get(wanted, ctx)
        render.memory(found)
        whole = found["memory"]["kind"] == "turn"
        typer.confirm("Forget it" + (", and everything drawn from this turn" if whole else ""), abort=True)
    with caller.daemon(runtime) as client:
        result = client.forget(wanted, ctx)
    if as_json:
        render.dump(result)
    else:
        typer.echo(f"forgotten: {', '.join(result['forgotten'])}" if result["forgotten"] else "it was forgotten before")


@app.command()
def reindex(
    what: Annotated[Literal["all", "words", "vectors"], typer.Argument(help="Which of the two indexes.")] = "all",
    agent: Agent = "main",
    file: ConfigFile = None,
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Make the indexes of an agent's memories anew from the record. The daemon serves from the old ones meanwhile."""
    from recalld import render
    from recalld.edge import caller

    with caller.daemon(_load(file, runtime_dir).runtime_path) as client:
        result = client.reindex({"agent_id": agent}, what, timeout_s=REINDEX_SECONDS)
    render.dump(result) if as_json else typer.echo(f"made anew in {result['seconds']:.1f} s")


@app.command()
def toggle(
    state: Annotated[Literal["on", "off", "status"], typer.Argument(help="status changes nothing.")],
    agent: Agent = "main",
    session: Annotated[str | None, typer.Option("--session", metavar="KEY", help="Such as agent:main:main.")] = None,
    everywhere: Annotated[bool, typer.Option("--global", help="In all sessions of all agents.")] = False,
    file: ConfigFile = None,
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Turn memory off or on for a session or for all: while it is off nothing is recalled there and no turn is kept."""
    from recalld import render
    from recalld.edge import caller

    if (everywhere and session) or not (everywhere or session or state == "status"):
        raise typer.BadParameter("say where: --session KEY or --global")
    ctx = {"agent_id": agent, "session_key": session} if session else None
    with caller.daemon(_load(file, runtime_dir).runtime_path) as client:
        result = client.toggle(state, ctx, "session" if session else "global")
    render.dump(result) if as_json else render.toggles(result, session)


@app.command()
def explain(
    recall_id: RecallId = None,
    agent: Agent = "main",
    session: Session = None,
    last: Annotated[
        int | None, typer.Option("--last", metavar="N", min=1, max=50, help="List so many of the latest.")
    ] = None,
    file: ConfigFile = None,
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Show how an answered prompt got its memories: every candidate with its score, and why it was kept or dropped."""
    from recalld import render, render_recall
    from recalld.edge import caller

    if recall_id and last:
        raise RecalldError("name one recall, or how many of the latest to list, not both")
    with caller.daemon(_load(file, runtime_dir).runtime_path) as client:
        result = client.explain(_recall_ctx(agent, session), _recall_id(recall_id), last or 1)
    if as_json:
        render.dump(result)
    elif last:
        render_recall.recalls(result)
    else:
        render_recall.explained(result["recalls"][0])


@app.command("replay-recall")
def replay_recall(
    recall_id: RecallId = None,
    agent: Agent = "main",
    session: Session = None,
    floor: Annotated[float | None, typer.Option("--floor", help="recall.floor")] = None,
    items_max: Annotated[int | None, typer.Option("--items-max", help="recall.items_max")] = None,
    tokens_max: Annotated[int | None, typer.Option("--tokens-max", help="recall.tokens_max")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="recall.KEY=VALUE", help="Any other key of [recall].")
    ] = None,
    file: ConfigFile = None,
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Ask an answered prompt again, under other settings or with today's memories, and compare. Nothing is counted or kept."""
    from recalld import render, render_recall
    from recalld.edge import caller

    flags = {"floor": floor, "items_max": items_max, "tokens_max": tokens_max}
    settings = config.recall_settings(assignments or []) | {k: v for k, v in flags.items() if v is not None}
    with caller.daemon(_load(file, runtime_dir).runtime_path) as client:
        result = client.replay_recall(_recall_ctx(agent, session), _recall_id(recall_id), settings)
    render.dump(result) if as_json else render_recall.replayed(result)


@app.command()
def tail(file: ConfigFile = None, runtime_dir: RuntimeDir = None, as_json: Json = False) -> None:
    """Show what the daemon publishes, as it happens, until Ctrl-C."""
    from recalld import render
    from recalld.edge import caller

    with suppress(KeyboardInterrupt), caller.heard(_load(file, runtime_dir)) as messages:
        for topic, payload in messages:
            render.dump(payload, lines=True) if as_json else render.message(topic, payload)


@config_app.command("show")
def config_show(
    file: ConfigFile = None,
    data_dir: DataDir = None,
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Show the effective configuration, as TOML, and where each value comes from."""
    from recalld import render

    loaded, origins = config.load_with_origins(file, {"data_dir": data_dir, "runtime_dir": runtime_dir})
    if as_json:
        render.dump({"config": render.config_values(loaded), "origins": render.origins_of(loaded, origins)})
    else:
        render.settings(loaded, origins)


@config_app.command("check")
def config_check(
    checked: Annotated[Path | None, typer.Argument(metavar="FILE", help="Else the usual one.")] = None,
    file: ConfigFile = None,
) -> None:
    """Check a configuration file together with the environment."""
    if checked and file:
        raise ConfigError("name one file to check, not two")
    path = config.chosen_file(checked or file)
    _, origins = config.load_with_origins(checked or file)
    typer.echo(f"{path}: right" if path.exists() else f"there is no {path}; the defaults hold")
    for key, origin in origins.items():
        typer.echo(f"  {key} ({origin})")


@service_app.command("print")
def service_print(file: ConfigFile = None) -> None:
    """Write the unit to standard output."""
    from recalld.edge import service_unit

    typer.echo(service_unit.render(service_unit.exec_start(file)), nl=False)


@service_app.command("install")
def service_install(file: ConfigFile = None, force: Force = False) -> None:
    """Install the daemon as a service of your user."""
    from recalld.edge import service_unit

    config.load(file)  # a service that cannot start is better refused here
    path = service_unit.install(service_unit.render(service_unit.exec_start(file)), force=force)
    typer.echo(
        f"{path} is written. Next:\n"
        "  systemctl --user enable --now recalld    start it now and with each login\n"
        "  loginctl enable-linger                   run it from boot on, and when you are logged out\n"
        "  recalld status                           see that it answers"
    )


@service_app.command("uninstall")
def service_uninstall(file: ConfigFile = None, force: Force = False) -> None:
    """Stop the service and remove its unit. Memories and configuration stay."""
    from recalld.edge import service_unit

    path = service_unit.uninstall(force=force)
    data = config.load(file).data_path
    typer.echo(f"{path} is removed; the memories stay in {data}" if path else "no service is installed")


@app.command()
def replay(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="OpenClaw recordings, conversation files.")],
    speed: Annotated[float, typer.Option(min=0, help="Divides the recorded gaps; 0 waits for none of them.")] = 1.0,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Play everything as this agent.")] = None,
    file: ConfigFile = None,
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Play recorded events to the daemon, as the gateways would that they come from. Exit code 1 where some were lost."""
    import asyncio

    import msgspec

    from recalld import render
    from recalld.replay import progress_bar
    from recalld.replay import replay as play

    runtime = _load(file, runtime_dir).runtime_path
    with progress_bar() as progress:
        result = asyncio.run(play(files, runtime_dir=runtime, speed=speed, agent=agent, progress=progress))
    render.dump(msgspec.to_builtins(result)) if as_json else typer.echo(result.summary())
    if result.lost:
        raise typer.Exit(1)


def _load(file: Path | None, runtime_dir: str | None) -> Config:
    flags: dict[str, Any] = {"runtime_dir": runtime_dir}
    return config.load(file, flags)


def _memory_id(text: str) -> str:
    return f"m{text}" if text.isdecimal() else text


def _recall_id(text: str | None) -> str | None:
    return f"r{text}" if text and text.isdecimal() else text


def _recall_ctx(agent: str, session: str | None) -> dict[str, str]:
    return {"agent_id": agent, **({"session_key": session} if session else {})}


def main() -> None:
    """Entry point. A RecalldError becomes one line on standard error and its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without UTF-8 shall not end a command
        sys.stdout.reconfigure(errors="replace")
    try:
        app(prog_name="recalld")
    except RecalldError as e:
        sys.stderr.write(f"recalld: {e}\n")
        sys.exit(e.exit_code)
