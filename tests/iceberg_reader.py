"""Readers of Iceberg tables that have nothing of pyiceberg or of this package: DuckDB, and the SQL catalog by hand."""

from __future__ import annotations

import sqlite3
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
    with _duckdb() as connection:
        table = connection.execute("SELECT * FROM iceberg_scan(?)", [metadata]).fetch_arrow_table()
    return table.to_pylist()  # type: ignore[no-any-return]


def _duckdb() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for name in ("avro", "iceberg"):
        (extension,) = (file for file in files(f"duckdb-ext-{name}") or () if file.name.endswith(".duckdb_extension"))
        connection.execute(f"LOAD '{extension.locate()}'")
    return connection
