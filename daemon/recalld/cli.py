"""The command line: parse, make a Config, run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from recalld import config, log
from recalld.errors import RecalldError

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def options() -> None:
    """recalld, the recall daemon."""


@app.command()
def run(file: Annotated[Path | None, typer.Option("--config")] = None) -> None:
    """Run the daemon."""
    from recalld.service import app as service

    loaded = config.load(file)
    log.configure(loaded.log_level)
    service.run(loaded, lambda: config.load(file))


def main() -> None:
    """Entry point. A RecalldError becomes one line on standard error and its exit code."""
    try:
        app()
    except RecalldError as e:
        sys.stderr.write(f"recalld: {e}\n")
        sys.exit(e.exit_code)
