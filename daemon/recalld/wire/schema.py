"""The Structs as JSON Schemas, for clients and people: `python -m recalld.wire.schema protocol/schemas`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from recalld.wire.operations import SCHEMAS

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def export() -> dict[str, dict[str, Any]]:
    """A JSON Schema (draft 2020-12) for each message, for the `event` of a hello, and for each operation's params and
    result, by the names in `operations.SCHEMAS`."""
    return {name: {"$schema": _DIALECT, **_portable(msgspec.json.schema(kind))} for name, kind in SCHEMAS.items()}


def write(folder: Path) -> None:
    """Write every schema to `<name>.json`, and remove those of messages that are gone."""
    schemas = export()
    for path in folder.glob("*.json"):
        if path.stem not in schemas:
            path.unlink()
    for name, schema in schemas.items():
        (folder / f"{name}.json").write_text(text(schema), encoding="utf-8")


def text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _portable(node: Any) -> Any:
    """What msgspec's schema does not say or says for Python only.

    - A field that may be left out may be null: a rule of the protocol that the codec applies to all messages.
    - Elsewhere `$` is the end of the text, so the lookahead that Python needs goes; some engines have none.
    """
    if isinstance(node, list):
        return [_portable(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: _portable(value) for key, value in node.items()}
    if isinstance(node.get("pattern"), str):
        node["pattern"] = node["pattern"].removesuffix(r"(?!\n)")
    if isinstance(properties := node.get("properties"), dict):
        required = node.get("required", [])
        node["properties"] = {
            name: field if name in required else _nullable(field) for name, field in properties.items()
        }
    return node


def _nullable(field: dict[str, Any]) -> dict[str, Any]:
    if {"type": "null"} in field.get("anyOf", []):
        return field
    default = {"default": field["default"]} if "default" in field else {}
    return {"anyOf": [{k: v for k, v in field.items() if k != "default"}, {"type": "null"}], **default}


if __name__ == "__main__":
    write(Path(sys.argv[1]))
