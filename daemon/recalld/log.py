"""Logging: key=value lines on standard error (coloured on a terminal), one place to set the level."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TextIO, cast

import structlog

LEVELS = ("debug", "info", "warning", "error")


class _Stderr:
    """Standard error, which may be a file on a full disk: a line that cannot be logged is no reason to stop serving."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def configure(level: str) -> None:
    """Send everything through structlog at `level` (one of LEVELS). May be called again."""
    renderer: structlog.types.Processor
    stamp: list[structlog.types.Processor] = []
    if sys.stderr.isatty():
        renderer = structlog.dev.ConsoleRenderer()
        stamp.append(structlog.processors.TimeStamper(fmt="%H:%M:%S"))
    else:  # the journal stamps lines itself
        renderer = structlog.processors.LogfmtRenderer(key_order=["level", "event"], bool_as_flag=False)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            *stamp,
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Stderr())),
        cache_logger_on_first_use=False,
    )
    logging.getLogger().setLevel(logging.WARNING)  # libraries configure the root logger when imported


def get(name: str) -> structlog.typing.FilteringBoundLogger:
    """A logger whose lines carry `part=name`."""
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger().bind(part=name)
    return log
