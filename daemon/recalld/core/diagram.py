"""The turn machine's table as a Mermaid diagram, for ARCHITECTURE.md; a test keeps the two the same."""

from __future__ import annotations

from recalld.core.turn import TRANSITIONS


def turn_diagram() -> str:
    edges: dict[tuple[str, str], list[str]] = {}
    for (state, what), to in TRANSITIONS.items():
        edges.setdefault((state.value, to.value), []).append(what.value)
    lines = [f"    {a} --> {b}: {', '.join(inputs)}" for (a, b), inputs in edges.items()]
    return "\n".join(["stateDiagram-v2", "    [*] --> open", *lines, "    gone --> [*]"])


if __name__ == "__main__":
    import sys

    sys.stdout.write(turn_diagram() + "\n")
