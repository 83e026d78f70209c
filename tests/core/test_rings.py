"""Imports point inward: core knows nothing of the others, wire only core's vocabulary, edge nothing of service."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "daemon" / "recalld"
ALLOWED = {
    "core": {"core", "wire"},
    "wire": {"wire"},
    "edge": {"core", "wire", "edge", "errors", "log", "config"},
    "service": {"core", "wire", "edge", "service", "errors", "log", "config"},
}
EDGE_ONLY = {"pynng", "sqlite3", "aiosqlite", "usearch", "numkong", "tantivy", "wordllama", "watchfiles", "fastembed"}
CLOCKS = {"time", "asyncio", "anyio", "threading", "socket", "os", "random", "pathlib"}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


@pytest.mark.parametrize("ring", ALLOWED)
def test_imports_point_inward(ring: str) -> None:
    for path in (ROOT / ring).glob("*.py"):
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "recalld" and len(parts) > 1 and parts[1] in {"core", "wire", "edge", "service", "cli"}:
                assert parts[1] in ALLOWED[ring], f"{path.name} imports {name}"
            if ring != "edge":
                assert parts[0] not in EDGE_ONLY, f"{path.name} imports {name}: only edge may"


def test_the_core_is_pure() -> None:
    for path in (ROOT / "core").glob("*.py"):
        tree = ast.parse(path.read_text())
        assert not any(isinstance(n, ast.AsyncFunctionDef | ast.Await) for n in ast.walk(tree)), path.name
        names = {name.split(".")[0] for name in imports(path)}
        assert not names & CLOCKS, f"{path.name} imports {names & CLOCKS}"
