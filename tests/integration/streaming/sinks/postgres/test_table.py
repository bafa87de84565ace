"""Which column of a table takes which of the stream's, and that every value arrives as it was."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.postgres.sink import PostgresSink
from airflow_provider_exactlyonce.streaming.sinks.postgres.staging import _TABLES
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkContext, SinkEntry
from tests.postgres import PostgresServer

UTC = dt.UTC
STRUCT = pa.struct([("a", pa.int32()), ("t", pa.list_(pa.string())), ("d", pa.decimal128(20, 18))])
#: name: (PostgreSQL's type, Spark's, Arrow's, values, what psycopg reads of them)
TYPES: dict[str, tuple[str, T.DataType, pa.DataType, list[Any], list[Any] | None]] = {
    "i8": ("smallint", T.ByteType(), pa.int8(), [-128, 127], None),
    "i64": ("bigint", T.LongType(), pa.int64(), [-(2**63), 2**63 - 1], None),
    "f32": ("real", T.FloatType(), pa.float32(), [0.5, float("-inf")], None),
    "f64": ("double precision", T.DoubleType(), pa.float64(), [0.1, 5e-324], None),
    "dec": ("numeric(38,18)", T.DecimalType(20, 18), pa.decimal128(20, 18), [Decimal("1e-18"), Decimal("-12.5")], None),
    "text": ("varchar(40)", T.StringType(), pa.string(), ["NULL", 'é"\\n\\N,\n\\.\n'], None),
    "kind": ("kind", T.StringType(), pa.string(), ["a", "b"], None),
    "uid": ("text", T.StringType(), pa.large_string(), ["", " "], None),
    "flag": ("boolean", T.BooleanType(), pa.bool_(), [True, False], None),
    "day": ("date", T.DateType(), pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)], None),
    "at": (
        "timestamptz",
        T.TimestampType(),
        pa.timestamp("us", "Europe/Berlin"),
        [dt.datetime(1, 1, 1, tzinfo=UTC), dt.datetime(2024, 7, 1, 1, 2, 3, 4, UTC)],
        None,
    ),
    "hour": ("time", T.TimeType(), pa.time64("ns"), [dt.time(1, 2, 3, 4), dt.time(23, 59, 59, 999999)], None),
    "local": ("timestamp", T.TimestampNTZType(), pa.timestamp("us"), [dt.datetime(2024, 7, 1), dt.datetime.max], None),
    "raw": ("bytea", T.BinaryType(), pa.binary(), [b"", bytes(range(256))], None),
    "list": ("text[]", T.ArrayType(T.StringType()), pa.list_(pa.string()), [['a"\\,{}', None, "NULL"], []], None),
    "raws": ("bytea[]", T.ArrayType(T.BinaryType()), pa.list_(pa.binary()), [[b"\x00\xff"], [None]], None),
    "doc": (
        "jsonb",
        T.StructType().add("a", T.IntegerType()).add("t", T.ArrayType(T.StringType())).add("d", T.DecimalType(20, 18)),
        STRUCT,
        [{"a": 1, "t": ["x"], "d": Decimal("1e-18")}, {"a": None, "t": None, "d": None}],
        [{"a": 1, "t": ["x"], "d": 1e-18}, {"a": None, "t": None, "d": None}],
    ),
    "map": (
        "jsonb",
        T.MapType(T.StringType(), T.LongType()),
        pa.map_(pa.string(), pa.int64()),
        [[("k", 1)], []],
        [{"k": 1}, {}],
    ),
    "nums": ("jsonb", T.ArrayType(T.LongType()), pa.list_(pa.int64()), [[1, None], []], None),
}


def made(postgres: PostgresServer, database: Mapping[str, str], *statements: str) -> None:
    with postgres.connect(database) as connection:
        for statement in statements:
            connection.execute(statement)


def test_every_type_arrives_as_it_was(postgres: PostgresServer, database: Mapping[str, str]) -> None:
    columns = ", ".join(f"{name} {of[0]}" for name, of in TYPES.items())
    made(postgres, database, "CREATE TYPE kind AS ENUM ('a', 'b')", f"CREATE TABLE t (n int, {columns})")
    sink = PostgresSink(name="s", table="t")
    sink.check_columns(
        T.StructType([T.StructField(name, of[1]) for name, of in TYPES.items()]).add("n", T.IntegerType())
    )
    committer = sink.open(SinkContext(pipeline="p", home=Path("/nowhere")))
    committer.claim(1)
    attempt = SinkAttempt(name="a" * 32, pipeline="p", commit=1, run=1)
    committer.begin(attempt)
    writer = committer.open_writer()(attempt, 0)
    arrays = [pa.array([None, *of[3]], of[2]) for of in TYPES.values()]
    batch = pa.RecordBatch.from_arrays([pa.array([0, 1, 2], pa.int32()), *arrays], names=["n", *TYPES])
    writer.write(batch.slice(0, 1))
    writer.write(batch.slice(1, 2))  # the columns' buffers have an offset
    task = writer.finish()
    writer.close()
    committer.pre_commit([task])
    committer.commit(SinkEntry(commit=1, run=1, lineage="l", batch=0, source={}, rows=3, digest=0))
    committer.close()
    with postgres.connect({**database, "options": "-c timezone=UTC"}) as connection:
        for name, (_, _, _, given, read) in TYPES.items():
            values = [value for (value,) in connection.execute(f"SELECT {name} FROM t ORDER BY n")]
            assert values == [None, *(given if read is None else read)], name
        exact = connection.execute("SELECT doc ->> 'd' FROM t WHERE n = 1").fetchone()
    assert exact == ("0.000000000000000001",)


@pytest.mark.parametrize(
    ("table", "columns", "declared", "message"),
    [
        (
            "(x int)",
            "x BIGINT",
            {},
            "column x of table public.t is integer, and the rows have it as bigint, which need",
        ),
        ("(x numeric(10,2))", "x DECIMAL(12,2)", {}, r"numeric\(12,2\) or wider: it would round"),
        ("(x timestamp)", "x TIMESTAMP", {}, "which needs timestamptz"),
        ("(x time(0))", "x TIME", {}, "six digits of a second"),
        ("(x timestamptz(3))", "x TIMESTAMP", {}, "six digits of a second"),
        ("(x text)", "x INTERVAL DAY TO SECOND", {}, "this one has no counterpart"),
        ("(x int[])", "x ARRAY<ARRAY<INT>>", {}, "this one has no counterpart"),
        ("(x int[])", "x INT", {}, "no array"),
        ("(x jsonb[])", "x ARRAY<STRUCT<INT>>", {}, "which needs jsonb or json"),
        ("(x jsonb)", "x STRUCT<INTERVAL>", {}, "another type than interval day to second in it: that one has no JSON"),
        ("(x json)", "x ARRAY<INTERVAL>", {}, "another type than interval day to second in it: that one has no JSON"),
        ("(y int)", "x INT", {}, "table public.t has no column x, which the rows have as int: add it"),
        ("(x int, y int NOT NULL)", "x INT", {}, "column y of table public.t is NOT NULL and has no default"),
        ("(x int GENERATED ALWAYS AS IDENTITY)", "x INT", {}, "generated by the server"),
        ("(x int)", "x INT", {"mode": "upsert", "key": ["x"]}, r"ALTER TABLE public.t ADD PRIMARY KEY \(x\)"),
        ("(x int UNIQUE)", "x INT", {"mode": "upsert", "key": ["x"]}, "ALTER COLUMN x SET NOT NULL"),
        ("(x int)", "x INT", {"mode": "delete", "key": ["z"]}, "sink s names the column z, and the rows have x"),
        ("(x int)", "x INT", {"commit_column": "c"}, "ALTER TABLE public.t ADD COLUMN c bigint"),
        ("(x int)", "x INT", {"table": "u"}, r"there is no table u in database"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    postgres: PostgresServer,
    database: Mapping[str, str],
    table: str,
    columns: str,
    declared: Mapping[str, Any],
    message: str,
) -> None:
    made(postgres, database, f"CREATE TABLE t {table}")
    sink = PostgresSink(**{"name": "s", "table": "t", **declared})
    with pytest.raises(RefusedError, match=message):
        sink.check_columns(schema_of(columns))


def schema_of(column: str) -> T.StructType:
    name, _, text = column.partition(" ")
    known = {
        "INT": T.IntegerType(),
        "BIGINT": T.LongType(),
        "TIME": T.TimeType(),
        "TIMESTAMP": T.TimestampType(),
        "DECIMAL(12,2)": T.DecimalType(12, 2),
        "INTERVAL DAY TO SECOND": T.DayTimeIntervalType(),
        "ARRAY<STRUCT<INT>>": T.ArrayType(T.StructType().add("a", T.IntegerType())),
        "STRUCT<INTERVAL>": T.StructType().add("a", T.DayTimeIntervalType()),
        "ARRAY<INTERVAL>": T.ArrayType(T.DayTimeIntervalType()),
        "ARRAY<ARRAY<INT>>": T.ArrayType(T.ArrayType(T.IntegerType())),
    }
    return T.StructType([T.StructField(name, known[text])])


def test_a_missing_right_is_named_with_the_grant(
    postgres: PostgresServer, database: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    user = f"u_{database['dbname']}"
    made(postgres, database, "CREATE TABLE t (x int)", f"CREATE ROLE {user} LOGIN")
    monkeypatch.setenv("EXACTLYONCE_POSTGRES", json.dumps({"postgres_default": {**database, "user": user}}))
    sink = PostgresSink(name="s", table="t")
    with pytest.raises(RefusedError, match=f"GRANT INSERT ON public.t TO {user}"):
        sink.check_columns(schema_of("x INT"))
    made(postgres, database, f"GRANT INSERT ON t TO {user}")
    committer = sink.open(SinkContext(pipeline="p", home=Path("/nowhere")))
    assert committer.tail() is None
    with pytest.raises(RefusedError, match=f"permission denied for .*CREATE SCHEMA exactlyonce AUTHORIZATION {user}"):
        committer.claim(1)
    made(postgres, database, "CREATE SCHEMA exactlyonce")
    for call in (committer.tail, partial(committer.claim, 1)):
        with pytest.raises(RefusedError, match=f"GRANT USAGE, CREATE ON SCHEMA exactlyonce TO {user}"):
            call()
    made(postgres, database, *_TABLES)
    made(postgres, database, f"GRANT USAGE ON SCHEMA exactlyonce TO {user}")
    with pytest.raises(
        RefusedError, match=r"permission denied for table commits.*GRANT SELECT, INSERT, UPDATE, DELETE"
    ):
        committer.tail()
    made(postgres, database, f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA exactlyonce TO {user}")
    assert committer.tail() is None
    lacking = "CREATE ON SCHEMA exactlyonce, DELETE ON exactlyonce.claims, DELETE ON exactlyonce.commits"
    with pytest.raises(RefusedError, match=f"lacking are {lacking}"):
        committer.claim(1)
    made(postgres, database, f"GRANT CREATE ON SCHEMA exactlyonce TO {user}")
    made(postgres, database, f"GRANT DELETE ON ALL TABLES IN SCHEMA exactlyonce TO {user}")
    assert committer.claim(1) is None
    committer.close()


def test_a_password_is_nowhere_to_be_read(database: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"postgres_default": {**database, "password": "s3cret", "dbname": "nowhere"}}
    monkeypatch.setenv("EXACTLYONCE_POSTGRES", json.dumps(given))
    sink = PostgresSink(name="s", table="t")
    with pytest.raises(RefusedError, match='database "nowhere" does not exist') as refused:
        sink.check_columns(T.StructType())
    from airflow_provider_exactlyonce.streaming.sinks.postgres.connection import parameters_of

    assert "s3cret" not in f"{refused.value!r} {sink!r} {parameters_of('postgres_default')!r}"
    assert parameters_of("postgres_default").given["password"] == "s3cret"
    with pytest.raises(RefusedError, match="has no connection other"):
        parameters_of("other")
