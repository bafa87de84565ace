"""The idempotent sink passes what every sink has to pass, into SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from pyspark.sql.types import DoubleType, LongType, StructType

from airflow_provider_exactlyonce.streaming.sinks.conformance import SinkConformance
from airflow_provider_exactlyonce.streaming.sinks.upsert import UpsertSink


class TestUpsertSink(SinkConformance):
    kills = 3
    refused_columns = (StructType().add("id", LongType()).add("w", DoubleType()), "w")

    def make_sink(self, folder: Path) -> UpsertSink:
        with closing(sqlite3.connect(folder / "target.db")) as database:
            database.execute("CREATE TABLE payments (id BIGINT PRIMARY KEY, k TEXT, v REAL)")
        return UpsertSink(name="table", url=f"sqlite:///{folder / 'target.db'}", table="payments", key="id")

    def visible(self, sink: Any) -> Iterable[Mapping[str, Any]]:
        with closing(sqlite3.connect(sink.url.removeprefix("sqlite:///"))) as database:
            rows = database.execute(f"SELECT id, k, v FROM {sink.table}").fetchall()
        return [dict(zip(("id", "k", "v"), row, strict=True)) for row in rows]

    def staged(self, sink: Any) -> Iterable[str]:
        return []  # it writes straight into the table
