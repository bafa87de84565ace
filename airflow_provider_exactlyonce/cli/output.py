"""What the subcommands of ``exactlyonce`` answer: JSON for programs, lines for people."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any


def print_answer(given: argparse.Namespace, body: object, text: str) -> None:
    """Print what a subcommand has to say, as JSON with ``--json``."""
    print(json.dumps(body, indent=2) if given.json else text)


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
