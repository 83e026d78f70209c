"""The exported schemas are those of the Structs, and they describe the vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from recalld.wire import schema
from recalld.wire.operations import SCHEMAS

VALIDATORS = {name: Draft202012Validator(exported) for name, exported in schema.export().items()}


def test_the_files_are_fresh(protocol: Path) -> None:
    files = {path.name: path.read_text(encoding="utf-8") for path in (protocol / "schemas").iterdir()}
    exported = {f"{name}.json": schema.text(exported) for name, exported in schema.export().items()}
    assert files == exported, "run: python -m recalld.wire.schema protocol/schemas"


def test_writing_removes_what_is_gone(tmp_path: Path) -> None:
    (tmp_path / "gone.json").write_text("{}")
    schema.write(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == set(SCHEMAS)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_a_schema(name: str) -> None:
    Draft202012Validator.check_schema(schema.export()[name])


def test_a_valid_vector_fits_its_schema(valid_case: dict[str, Any]) -> None:
    validator = VALIDATORS[valid_case["kind"]]
    for data in valid_case["forms"]:
        validator.validate(json.loads(data) if data[:1] == b"{" else msgspec.msgpack.decode(data))
    validator.validate(valid_case["expect"])


def test_a_reply_in_an_exchange_fits_its_schema(exchange: dict[str, Any]) -> None:
    answer = json.loads(exchange["receive"])
    VALIDATORS["reply" if exchange["endpoint"] == "rpc" else answer["type"]].validate(answer)


def test_a_field_out_of_bounds_does_not_fit(invalid: dict[str, list[dict[str, Any]]]) -> None:
    """What a schema can say, it says. Whether a `seq` must be there depends on the type, so that is prose only; and
    `$` of this validator is Python's, which lets a last line break pass."""
    for case in [*invalid["E_ENVELOPE"], *invalid["E_PARAMS"]]:
        by_type = case["expect"].get("field") == "seq" and " is " not in case["name"]
        if case["kind"] == "exchange" or by_type or "\\n" in case["name"]:
            continue
        for data in case["forms"]:
            if data.startswith(b"{"):
                assert not VALIDATORS[case["kind"]].is_valid(json.loads(data)), case["name"]
