"""Readers of Iceberg tables that have nothing of pyiceberg or of this package: DuckDB, and the SQL catalog by hand."""

from __future__ import annotations

import json
import sqlite3
from functools import cache
from importlib.metadata import files
from pathlib import Path
from typing import Any

import duckdb


def newest_metadata(catalog: Path, table: str) -> str:
    """Return where the newest metadata of a table is.

    :param catalog: the file of a SQL catalog
    :param table: the namespace's and the table's name
    """
    namespace, _, name = table.partition(".")
    connection = sqlite3.connect(catalog)
    try:
        ((location,),) = connection.execute(
            "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = ? AND table_name = ?",
            (namespace, name),
        ).fetchall()
    finally:
        connection.close()
    return str(location)


def read_iceberg(metadata: str) -> list[dict[str, Any]]:
    """Return the rows of a table as its metadata has it."""
    with _duckdb().cursor() as connection:
        table = connection.execute("SELECT * FROM iceberg_scan(?)", [metadata]).fetch_arrow_table()
    return table.to_pylist()  # type: ignore[no-any-return]


def newest_iceberg_entry(metadata: str) -> dict[str, Any] | None:
    """Return what the newest of a pipeline's snapshots says of itself, None if there is none."""
    content = json.loads(Path(metadata.removeprefix("file://")).read_text())
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in content["snapshots"]}
    snapshot = snapshots.get(content["current-snapshot-id"])
    while snapshot is not None and "exactlyonce.entry" not in snapshot["summary"]:
        snapshot = snapshots.get(snapshot.get("parent-snapshot-id"))
    return None if snapshot is None else json.loads(snapshot["summary"]["exactlyonce.entry"])


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    """Return DuckDB with its extensions, which take longer to load than most tables to read."""
    connection = duckdb.connect()
    for name in ("avro", "iceberg"):
        (extension,) = (file for file in files(f"duckdb-ext-{name}") or () if file.name.endswith(".duckdb_extension"))
        connection.execute(f"LOAD '{extension.locate()}'")
    return connection
