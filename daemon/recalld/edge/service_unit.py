"""recalld as a service of systemd: the unit's text, and its place among the user's units."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from recalld.edge.files import write_atomic
from recalld.errors import FolderError, RecalldError

NAME = "recalld.service"
STANDARD_EXEC_START = "%h/.local/bin/recalld run"  # of systemd/recalld.service: `uv tool install`, pipx, `pip --user`
SYSTEMCTL_SECONDS = 60.0

_TEMPLATE = Path(__file__).parent.parent / "data" / f"{NAME}.in"
_MARK = re.compile(r"^# unchanged: ([0-9a-f]{16})\n\Z", re.MULTILINE)
_PLAIN = re.compile(r"[A-Za-z0-9_./:=,+@-]+")


def render(exec_start: str) -> str:
    """The unit. Its last line is a mark of all lines before it, by which a change by hand is seen later."""
    body = _TEMPLATE.read_text(encoding="utf-8").replace("@EXEC_START@", exec_start)
    return f"{body}\n# unchanged: {_digest(body)}\n"


def _digest(body: str) -> str:
    return hashlib.blake2b(body.strip().encode(), digest_size=8).hexdigest()


def changed_by_hand(unit: str) -> bool:
    """Whether a person (or anything but `render`) had a hand in a unit."""
    mark = _MARK.search(unit)
    return mark is None or mark[1] != _digest(unit[: mark.start()])


def quoted(arguments: Sequence[str]) -> str:
    """A command as systemd reads it back: specifiers, variables and quotes taken literally (systemd.service(5))."""
    words = []
    for number, argument in enumerate(arguments):
        text = argument.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
        if number:  # variables are not looked for in the program's own path
            text = text.replace("$", "$$")
        words.append(text if _PLAIN.fullmatch(argument) else f'"{text}"')
    return " ".join(words)


def command() -> list[str]:
    """The absolute command that starts this installation."""
    for folder in (sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")):
        script = Path(folder) / "recalld"
        if script.is_file() and os.access(script, os.X_OK):
            return [str(script)]
    return [sys.executable, "-m", "recalld"]


def exec_start(config_file: Path | None) -> str:
    """What ExecStart is for this installation and configuration."""
    return quoted([*command(), "run", *(["--config", str(config_file.absolute())] if config_file else [])])


def unit_path(environ: Mapping[str, str] | None = None) -> Path:
    env = os.environ if environ is None else environ
    base = env.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".config") / "systemd" / "user" / NAME


def read(path: Path) -> str | None:
    """The unit that is installed, None if there is none. Raises FolderError."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as e:
        raise FolderError(f"the unit {path} cannot be read: {e.strerror}") from None


def install(unit: str, *, force: bool) -> Path:
    """Write the unit and have systemd read it. Raises RecalldError; FolderError where it cannot be written."""
    path = unit_path()
    if shutil.which("systemctl") is None:
        raise RecalldError(
            "there is no systemctl here, so no service was installed: have `recalld run` started by what starts services"
            f" on this machine, or write the unit for another one with `recalld service print > {NAME}`"
        )
    present = read(path)
    if present is not None and not force and changed_by_hand(present):
        raise RecalldError(
            f"{path} was changed by hand and is left as it is: keep your changes in a drop-in"
            " (`systemctl --user edit recalld`), then use --force to replace it"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, unit.encode())
    except OSError as e:
        raise FolderError(
            f"the unit {path} cannot be written: {e.strerror}. Correct its folder's permissions"
        ) from None
    systemctl("daemon-reload", done=f"{path} is written")
    return path


def uninstall(*, force: bool) -> Path | None:
    """Stop the service and remove its unit. None if none was installed. Raises RecalldError."""
    path = unit_path()
    present = read(path)
    if present is None:
        return None
    if not force and changed_by_hand(present):
        raise RecalldError(f"{path} was changed by hand and is left as it is: use --force to remove it all the same")
    has_systemctl = shutil.which("systemctl") is not None
    if has_systemctl:
        systemctl("disable", "--now", NAME, done=f"{path} is still there")
    try:
        path.unlink()
    except OSError as e:
        raise FolderError(f"the unit {path} cannot be removed: {e.strerror}") from None
    if has_systemctl:
        systemctl("daemon-reload", done=f"{path} is removed")
    return path


def systemctl(*arguments: str, done: str) -> None:
    """Raises RecalldError saying what was `done` before, and what is left to do."""
    line = f"systemctl --user {' '.join(arguments)}"
    try:
        result = subprocess.run(
            ["systemctl", "--user", *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SYSTEMCTL_SECONDS,
            check=False,
        )
        problem = " ".join((result.stderr or f"exit code {result.returncode}").split()) if result.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as e:
        problem = str(e)
    if problem:
        raise RecalldError(
            f"{done}, but `{line}` failed: {problem}. Run it in a session of this user (log in, not su or sudo)"
        )
