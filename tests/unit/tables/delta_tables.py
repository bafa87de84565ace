"""Small Delta tables, as others write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

IDS = pa.schema([("id", pa.int64()), ("text", pa.string())])


def rows(*ids: int) -> pa.Table:
    """Return rows with these ids."""
    return pa.table({"id": list(ids), "text": [f"row {number}" for number in ids]}, IDS)


def append(path: Path, *ids: int, **options: Any) -> None:
    """Write a version that adds one file."""
    write_deltalake(path, rows(*ids), mode="append", **options)


def three_versions(path: Path) -> Path:
    """Make a table with three versions, of which each adds one file of two rows."""
    for version in range(3):
        append(path, 2 * version, 2 * version + 1)
    return path


def entry(path: Path, version: int) -> Path:
    """Return a version's entry in the log."""
    return path / "_delta_log" / f"{version:020d}.json"


def write_entry(path: Path, version: int, actions: Sequence[dict[str, Any]]) -> None:
    """Write a version by hand."""
    entry(path, version).write_text("\n".join(map(json.dumps, actions)))


def actions(path: Path, version: int) -> list[dict[str, Any]]:
    """Return what a version says."""
    return [json.loads(line) for line in entry(path, version).read_text().splitlines()]
