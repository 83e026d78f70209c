"""The vectors, as parameters: a test that takes `valid_case`, `invalid_case` or `exchange` runs once for each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# Time limits are the test's own: one slow example on a busy machine is no finding.
hypothesis.settings.register_profile("wire", deadline=None, print_blob=True)
hypothesis.settings.load_profile("wire")

PROTOCOL = Path(__file__).parents[2] / "protocol"


def forms(case: dict[str, Any]) -> list[bytes]:
    """The bytes of a case, in each form that it has."""
    found = []
    if "json" in case:
        found.append(case["json"].encode())
    if "hex" in case:
        found.append(bytes.fromhex(case["hex"]))
    if "send" in case:
        found.append(case["send"].encode())
    if "repeat" in case:
        parts = case["repeat"]
        found.append((parts["before"] + parts["text"] * parts["count"] + parts["after"]).encode())
    return found


def load(folder: str) -> dict[str, list[dict[str, Any]]]:
    """file name -> cases, each with its bytes under `forms`."""
    vectors: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((PROTOCOL / "vectors" / folder).glob("*.json")):
        cases = json.loads(path.read_text(encoding="utf-8"))
        vectors[path.stem] = [{**case, "file": path.stem, "forms": forms(case)} for case in cases]
    return vectors


VALID = load("valid")
INVALID = load("invalid")
_ALL_INVALID = [case for cases in INVALID.values() for case in cases]
_PARAMETERS = {
    "valid_case": [case for cases in VALID.values() for case in cases],
    "invalid_case": [case for case in _ALL_INVALID if case["kind"] != "exchange"],
    "exchange": [case for case in _ALL_INVALID if case["kind"] == "exchange"],
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, cases in _PARAMETERS.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, cases, ids=[f"{case['file']}:{case['kind']}:{case['name']}" for case in cases])


@pytest.fixture(scope="session")
def protocol() -> Path:
    return PROTOCOL


@pytest.fixture(scope="session")
def valid() -> dict[str, list[dict[str, Any]]]:
    return VALID


@pytest.fixture(scope="session")
def invalid() -> dict[str, list[dict[str, Any]]]:
    return INVALID
