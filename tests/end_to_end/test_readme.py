"""README: its example runs, and what it says of commands and files is so."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

from daemon_process import DaemonProcess

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_example_runs(daemon: DaemonProcess) -> None:
    found = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert found is not None
    imports, _, body = found[1].partition("\n\n")
    script = f"import asyncio\n{imports}\n\nasync def main():\n{textwrap.indent(body, '    ')}\nasyncio.run(main())\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={"RECALLD_RUNTIME_DIR": str(daemon.runtime_dir)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_command_exists() -> None:
    commands = set(re.findall(r"recalld ([a-z]+)", "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL))))
    usage = subprocess.run(
        [sys.executable, "-m", "recalld", "--help"], capture_output=True, text=True, timeout=30
    ).stdout
    assert commands
    assert all(re.search(rf"^\W*{command}\b", usage, re.MULTILINE) for command in commands), usage
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`?make ([a-z]+)", README)) <= set(targets)


def test_every_link_leads_somewhere() -> None:
    for name in (
        "README.md",
        "CONTRIBUTING.md",
        "ARCHITECTURE.md",
        "protocol/README.md",
        "systemd/README.md",
        "clients/python/README.md",
    ):
        path = ROOT / name
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{name} links to {target}"
