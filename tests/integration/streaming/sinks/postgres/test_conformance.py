"""The PostgreSQL sink passes what every sink has to pass, on a real server."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from psycopg.rows import dict_row
from pyspark.sql.types import DoubleType, LongType, StructType

from airflow_provider_exactlyonce.streaming.sinks.postgres.sink import PostgresSink
from airflow_provider_exactlyonce.streaming.sinks.postgres.staging import identity
from airflow_provider_exactlyonce.testing.sink_conformance import SinkConformance
from tests import faulty_targets
from tests.postgres import PostgresServer


class TestPostgresSink(SinkConformance):
    kills = 4
    faults = 3
    refused_columns = (StructType().add("id", LongType()).add("w", DoubleType()), "w")
    keys: Mapping[str, Any] = {}

    @pytest.fixture(autouse=True)
    def calls_can_fail(self, monkeypatch: pytest.MonkeyPatch) -> None:
        faulty_targets.postgres(monkeypatch)

    @pytest.fixture(autouse=True)
    def connected(self, postgres: PostgresServer, database: Mapping[str, str]) -> None:
        self.server, self.parameters = postgres, database

    def make_sink(self, folder: Path) -> PostgresSink:
        table = f"t{hashlib.md5(str(folder).encode()).hexdigest()[:12]}"
        with self.server.connect(self.parameters) as connection:
            connection.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, k text, v double precision)")
        return PostgresSink(name=table, table=table, **self.keys)

    def set_back(self, sink: Any, folder: Path) -> Callable[[], None]:
        tables = {name: f"exactlyonce.{name} WHERE sink = '{sink.name}'" for name in ("claims", "commits")}
        tables["rows"] = f"{sink.table} WHERE true"
        with self.server.connect(self.parameters) as connection:
            for name, table in tables.items():
                connection.execute(f"CREATE TABLE backup_{name}_{sink.table} AS SELECT * FROM {table}")

        def put_back() -> None:
            with self.server.connect(self.parameters) as connection, connection.transaction():
                for name, table in tables.items():
                    connection.execute(f"DELETE FROM {table}")
                    into = table.partition(" ")[0]
                    connection.execute(f"INSERT INTO {into} SELECT * FROM backup_{name}_{sink.table}")

        return put_back

    def visible(self, sink: Any) -> Iterable[Mapping[str, Any]]:
        with self.server.connect(self.parameters) as connection:
            return connection.cursor(row_factory=dict_row).execute(f"SELECT id, k, v FROM {sink.table}").fetchall()

    def staged(self, sink: Any) -> Iterable[str]:
        with self.server.connect(self.parameters) as connection:
            rows = connection.execute(
                "SELECT tablename::text FROM pg_tables WHERE schemaname = 'exactlyonce' AND starts_with(tablename, %s)",
                [f"stage_{identity(('conformance', sink.name))}_"],
            ).fetchall()
        return [name for (name,) in rows]


class TestPostgresUpserts(TestPostgresSink):
    kills = 2
    keys: Mapping[str, Any] = {"mode": "upsert", "key": "id"}
