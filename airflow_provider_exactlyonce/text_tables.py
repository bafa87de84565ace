"""Facts as text for people: a table, or a line for each fact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def pairs(facts: Mapping[str, Any]) -> str:
    """Return facts as lines of a name and a value."""
    width = max(map(len, facts))
    return "\n".join(f"{name.replace('_', ' '):<{width}}  {_text(value)}" for name, value in facts.items())


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of the same facts as a table with a heading, empty without rows."""
    if not rows:
        return ""
    lines = [[name.replace("_", " ") for name in rows[0]], *([_text(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)
