"""A reader of Delta tables that has nothing of delta-rs or of this package: the log's JSON and Parquet, by hand.

It knows what the protocol says of plain tables: checkpoints in one part, no deletion vectors, no mapped columns.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq


def read_delta(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows of the newest version; the values of partitions are texts."""
    root = Path(path)
    files, columns = _state(root)
    rows: list[dict[str, Any]] = []
    for name, partition in files.items():
        missing = dict.fromkeys(columns)
        rows += [{**missing, **row, **partition} for row in _rows(root / name)]
    return rows


def newest_delta_entry(path: str | Path) -> dict[str, Any] | None:
    """Return what the newest of a pipeline's commits says of itself, None if there is none."""
    entry = None
    for file in sorted(Path(path, "_delta_log").glob("*.json")):
        for line in file.read_text().splitlines():
            entry = json.loads(line).get("commitInfo", {}).get("exactlyonce", {}).get("entry") or entry
    return entry


def _rows(file: Path) -> list[dict[str, Any]]:
    # A reader of one file: of a path it would take the directories for columns.
    with file.open("rb") as opened:
        return pa.table(pq.ParquetFile(opened).read()).to_pylist()  # type: ignore[no-any-return]


def _state(root: Path) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return {file: its partition's values}, and the names of the columns."""
    log = root / "_delta_log"
    files: dict[str, dict[str, Any]] = {}
    columns: list[str] = []
    for action in _actions(log):
        if add := action.get("add"):
            values = add["partitionValues"]
            files[unquote(add["path"])] = {
                name: value or None for name, value in (values if isinstance(values, list) else values.items())
            }
        if remove := action.get("remove"):
            files.pop(unquote(remove["path"]), None)
        if metadata := action.get("metaData"):
            columns = [field["name"] for field in json.loads(metadata["schemaString"])["fields"]]
    return files, columns


def _actions(log: Path) -> list[dict[str, Any]]:
    last, actions = -1, []
    if (hint := log / "_last_checkpoint").exists():
        last = json.loads(hint.read_text())["version"]
        actions = _rows(log / f"{last:020d}.checkpoint.parquet")
        actions = [action for action in actions if action.get("add") or action.get("metaData")]
    for file in sorted(log.glob("*.json")):
        if file.stem.isdecimal() and int(file.stem) > last:
            actions += [json.loads(line) for line in file.read_text().splitlines()]
    return actions
