"""Delta tables: values, columns, partitions, other writers, zombies, retention and the audit, as readers see them."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import PrimitiveType
from pyspark.sql import types as T

from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    CommitUnknownError,
    FencedError,
    RecordRefusedError,
    RefusedError,
)
from airflow_provider_exactlyonce.streaming import DeltaSink
from airflow_provider_exactlyonce.streaming.sinks.delta.committer import DeltaCommitter
from airflow_provider_exactlyonce.streaming.sinks.delta.log import DeltaLog
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkContext, SinkEntry
from airflow_provider_exactlyonce.streaming.spark import typed_errors
from tests.delta_reader import read_delta

PIPELINE = "shop"
COLUMNS = T.StructType().add("id", T.LongType()).add("k", T.StringType())


class Live:
    """A run of a sink; each :meth:`commit` gives it some tasks' rows."""

    def __init__(
        self, sink: DeltaSink, home: Path, run: int = 1, columns: T.StructType = COLUMNS, pipeline: str = PIPELINE
    ) -> None:
        self.sink, self.run, self.pipeline = sink, run, pipeline
        committer = sink.open(SinkContext(pipeline=pipeline, home=home))
        assert isinstance(committer, DeltaCommitter)
        self.committer = committer
        sink.check_columns(columns)
        committer.expect_columns(columns)
        claimed = committer.claim(run)
        self.number = claimed.commit if claimed else 0

    def stage(self, *tasks: Sequence[dict[str, Any]]) -> SinkEntry:
        attempt = SinkAttempt(name=os.urandom(8).hex(), pipeline=self.pipeline, commit=self.number + 1, run=self.run)
        self.committer.begin(attempt)
        told = []
        columns = self.committer._columns
        for task, rows in enumerate(tasks):
            with closing(self.committer.open_writer()(attempt, task)) as writer:
                writer.write(pa.RecordBatch.from_pylist(list(rows), columns))
                told.append(writer.finish())
        self.committer.pre_commit(told)
        count = sum(len(rows) for rows in tasks)
        return SinkEntry(
            commit=self.number + 1,
            run=self.run,
            lineage="l",
            batch=self.number,
            source={"events": {0: (self.number, self.number + 1)}},
            rows=count,
            digest=count,
        )

    def commit(self, *tasks: Sequence[dict[str, Any]]) -> SinkEntry:
        entry = self.stage(*tasks)
        self.committer.commit(entry)
        self.number += 1
        self.committer.settled(self.number)
        return entry


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": number, "k": f"k{number % 3}"} for number in range(first, first + count)]


def ids(path: Path) -> list[int]:
    return sorted(row["id"] for row in read_delta(path))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
def sink(table: Path) -> DeltaSink:
    return DeltaSink(name="lake", path=str(table))


# Values

EVERY_TYPE = T.StructType(
    [
        T.StructField("id", T.LongType()),
        T.StructField("byte", T.ByteType()),
        T.StructField("short", T.ShortType()),
        T.StructField("int", T.IntegerType()),
        T.StructField("float", T.FloatType()),
        T.StructField("double", T.DoubleType()),
        T.StructField("bool", T.BooleanType()),
        T.StructField("text", T.StringType()),
        T.StructField("bytes", T.BinaryType()),
        T.StructField("date", T.DateType()),
        T.StructField("at", T.TimestampType()),
        T.StructField("local", T.TimestampNTZType()),
        T.StructField("amount", T.DecimalType(12, 2)),
        T.StructField("big", T.DecimalType(38, 10)),
        T.StructField("list", T.ArrayType(T.StringType())),
        T.StructField("map", T.MapType(T.StringType(), T.LongType())),
        T.StructField("nested", T.StructType().add("a", T.LongType()).add("l", T.ArrayType(T.DoubleType()))),
    ]
)
UTC = datetime.UTC
VALUES: list[dict[str, Any]] = [
    {
        "id": 1,
        "byte": -128,
        "short": 32767,
        "int": -(2**31),
        "float": 0.5,
        "double": float("inf"),
        "bool": True,
        "text": "ü" * 100,
        "bytes": b"\x00\xff",
        "date": datetime.date(1582, 10, 15),
        "at": datetime.datetime(2024, 2, 29, 23, 59, 59, 999999, UTC),
        "local": datetime.datetime(1900, 1, 1, 0, 0, 0, 1),
        "amount": Decimal("-9999999999.99"),
        "big": Decimal("1234567890123456789012345678.0123456789"),
        "list": ["a", None, ""],
        "map": [("a", 1), ("b", None)],
        "nested": {"a": 1, "l": [0.5, None]},
    },
    {**dict.fromkeys(EVERY_TYPE.names), "id": 2},
    {**dict.fromkeys(EVERY_TYPE.names), "id": 3, "list": [], "map": [], "nested": {"a": None, "l": []}, "text": ""},
]


def test_every_type_comes_back_as_it_was_by_two_readers(sink: DeltaSink, table: Path, tmp_path: Path) -> None:
    Live(sink, tmp_path, columns=EVERY_TYPE).commit(VALUES[:1], VALUES[1:])
    by_id = sorted(read_delta(table), key=lambda row: row["id"])
    assert by_id == VALUES
    assert sorted(DeltaTable(table).to_pyarrow_table().to_pylist(), key=lambda row: row["id"]) == VALUES


def test_statistics_leave_out_files_and_no_row(sink: DeltaSink, table: Path, tmp_path: Path) -> None:
    live = Live(sink, tmp_path, columns=EVERY_TYPE)
    empty = dict.fromkeys(EVERY_TYPE.names)
    live.commit(VALUES, [{**empty, "id": 10, "double": float("nan"), "text": "z", "amount": Decimal("5.25")}])
    found = DeltaTable(table)
    (first, second) = sorted(
        (json.loads(line)["add"] for line in log_entry(table, 2) if '"add"' in line), key=lambda add: add["path"]
    )
    statistics = json.loads(first["stats"], parse_float=Decimal)
    assert statistics["numRecords"] == 3 and statistics["nullCount"]["text"] == 1
    assert statistics["minValues"]["at"] == "2024-02-29T23:59:59.999999Z"
    assert statistics["minValues"]["local"] == "1900-01-01T00:00:00.000001"
    assert statistics["maxValues"]["big"] == Decimal("1234567890123456789012345678.0123456789")
    assert statistics["maxValues"]["nested"] == {"a": 1}
    assert statistics["minValues"]["text"] == "" and statistics["maxValues"]["text"] == "ü" * 32 + "\U0010ffff"
    assert "double" not in json.loads(second["stats"])["maxValues"], "NaN is greater than all"
    assert "bytes" not in statistics["minValues"] and "bool" not in statistics["minValues"]
    for column, condition, expected in (
        ("text", pa.compute.field("text") == "ü" * 100, [1]),
        ("amount", pa.compute.field("amount") > Decimal("5.00"), [10]),
        ("at", pa.compute.field("at") >= datetime.datetime(2024, 2, 29, 23, 59, 59, 999999, UTC), [1]),
        ("local", pa.compute.field("local") <= datetime.datetime(1900, 1, 1, 0, 0, 0, 1), [1]),
        ("date", pa.compute.field("date") < datetime.date(1600, 1, 1), [1]),
    ):
        assert found.to_pyarrow_dataset().to_table(filter=condition)["id"].to_pylist() == expected, column


def log_entry(table: Path, version: int) -> list[str]:
    return (table / "_delta_log" / f"{version:020d}.json").read_text().splitlines()


ODD = [
    *(
        "..",
        "a/b=ü\n",
        "50%",
        "x%2Fy",
        "a b",
        "null",
        "a'b\"c",
        "😀",
        "a#b?c&d+e",
        "\t",
        "\\",
    ),
    None,
]


def test_odd_values_of_partitions_come_back_as_they_were(table: Path, tmp_path: Path) -> None:
    sink = DeltaSink(name="lake", path=str(table), partition_by="k")
    given = [{"id": number, "k": value} for number, value in enumerate(ODD)]
    Live(sink, tmp_path).commit(given)
    by_id = sorted(read_delta(table), key=lambda row: row["id"])
    assert by_id == given
    assert sorted(DeltaTable(table).to_pyarrow_table().to_pylist(), key=lambda row: row["id"]) == given


def test_partitions_of_other_types_are_read_as_such(table: Path, tmp_path: Path) -> None:
    columns = T.StructType(
        [
            T.StructField("id", T.LongType()),
            T.StructField("day", T.DateType()),
            T.StructField("flag", T.BooleanType()),
            T.StructField("n", T.ShortType()),
        ]
    )
    sink = DeltaSink(name="lake", path=str(table), partition_by=["day", "flag", "n"])
    given: list[dict[str, Any]] = [
        {"id": 1, "day": datetime.date(2024, 2, 29), "flag": False, "n": -3},
        {"id": 2, "day": None, "flag": None, "n": None},
    ]
    Live(sink, tmp_path, columns=columns).commit(given)
    assert sorted(DeltaTable(table).to_pyarrow_table().to_pylist(), key=lambda row: row["id"]) == given


@pytest.mark.parametrize("value", ["", "__HIVE_DEFAULT_PARTITION__"])
def test_a_text_in_a_partition_that_readers_take_for_null_is_refused(table: Path, tmp_path: Path, value: str) -> None:
    live = Live(DeltaSink(name="lake", path=str(table), partition_by="k"), tmp_path)
    with pytest.raises(RecordRefusedError) as refused:
        live.stage([{"id": 1, "k": value}])
    told = str(typed_errors.find(str(refused.value)))
    assert f"column 'k' of partition_by is the text {value!r}, which readers of Delta take for null" in told


def test_a_text_that_makes_no_directory_is_refused(table: Path, tmp_path: Path) -> None:
    live = Live(DeltaSink(name="lake", path=str(table), partition_by="k"), tmp_path)
    with pytest.raises(RecordRefusedError, match="makes a directory's name of 302 bytes"):
        live.stage([{"id": 1, "k": "x" * 300}])


def test_a_file_that_has_its_size_is_closed_and_another_begun(table: Path, tmp_path: Path) -> None:
    sink = DeltaSink(name="lake", path=str(table), compression="none", max_file_bytes=2**20)
    columns = T.StructType().add("id", T.LongType()).add("b", T.BinaryType())
    live = Live(sink, tmp_path, columns=columns)
    attempt = SinkAttempt(name="a", pipeline=PIPELINE, commit=1, run=1)
    live.committer.begin(attempt)
    with closing(live.committer.open_writer()(attempt, 0)) as writer:
        for number in range(2):
            writer.write(pa.RecordBatch.from_pydict({"id": [number], "b": [os.urandom(33 * 2**20)]}))
        files = writer.finish()["files"]
    assert [file["rows"] for file in files] == [1, 1]


# Columns


def test_a_table_is_made_at_the_claim_and_not_before(sink: DeltaSink, table: Path, tmp_path: Path) -> None:
    sink.check_columns(COLUMNS)
    committer = sink.open(SinkContext(pipeline=PIPELINE, home=tmp_path))
    assert committer.tail() is None and not table.exists()
    Live(sink, tmp_path)
    assert read_delta(table) == [] and DeltaTable(table).schema().to_json() == json.dumps(
        {
            "type": "struct",
            "fields": [
                {"name": "id", "type": "long", "nullable": True, "metadata": {}},
                {"name": "k", "type": "string", "nullable": True, "metadata": {}},
            ],
        },
        separators=(",", ":"),
    )


def made(table: Path, columns: pa.Schema, **more: Any) -> DeltaTable:
    return DeltaTable.create(str(table), columns, **more)


LONG, TEXT = pa.field("id", pa.int64()), pa.field("k", pa.string())


@pytest.mark.parametrize(
    ("has", "more", "said"),
    [
        ([LONG], {}, r"has no column 'k', which the rows have as string.*DeltaSink\(schema='evolve'\)"),
        ([LONG, pa.field("K", pa.string())], {}, "has the column 'K', and the rows 'k': rename it"),
        ([LONG, pa.field("k", pa.int32())], {}, "column 'k' of table .* is integer, and the rows have it as string"),
        ([LONG, TEXT, pa.field("must", pa.int64(), nullable=False)], {}, "column 'must' of table .* is NOT NULL"),
        ([LONG, TEXT], {"partition_by": ["k"]}, r"is partitioned by \['k'\], and the sink declares partition_by=\[\]"),
        (
            [LONG, TEXT],
            {"configuration": {"delta.setTransactionRetentionDuration": "interval 7 days"}},
            "delta.setTransactionRetentionDuration='interval 7 days': a pipeline that stands still for longer",
        ),
        ([LONG, TEXT], {"configuration": {"delta.columnMapping.mode": "name"}}, r"columnMapping\.mode='name'"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_name_before_anything_starts(
    sink: DeltaSink, table: Path, has: list[pa.Field], more: dict[str, Any], said: str
) -> None:
    made(table, pa.schema(has), **more)
    with pytest.raises(RefusedError, match=said):
        sink.check_columns(COLUMNS)
    assert DeltaTable(table).version() == 0


def change(table: Path, kind: str, **changed: Any) -> None:
    """Change what the first version says, as a writer that can do more would have written it."""
    first = table / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    first.write_text(
        "".join(json.dumps({kind: {**line[kind], **changed}} if kind in line else line) + "\n" for line in lines)
    )


@pytest.mark.parametrize("readers", [[], ["typeWidening"]])
@pytest.mark.parametrize("feature", ["rowTracking", "inCommitTimestamp", "icebergCompatV2", "unheardOf"])
def test_a_feature_that_the_sink_does_not_know_is_refused_by_name(
    sink: DeltaSink, table: Path, feature: str, readers: list[str]
) -> None:
    made(table, pa.schema([LONG, TEXT]))
    more = {"minReaderVersion": 3, "readerFeatures": readers} if readers else {}
    change(table, "protocol", minWriterVersion=7, writerFeatures=[feature, *readers], **more)
    named = ", ".join(sorted([feature, *readers]))
    with pytest.raises(RefusedError, match=f"has the features {named}, which this sink can't keep"):
        sink.check_columns(COLUMNS)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("delta.constraints.positive", "id > 0", "has the constraint delta.constraints.positive='id > 0'"),
        ("delta.enableRowTracking", "true", "delta.enableRowTracking='true': rows would need numbers"),
        ("delta.enableInCommitTimestamps", "true", "delta.enableInCommitTimestamps='true'"),
    ],
)
def test_a_property_that_the_sink_cannot_keep_is_refused_by_name(
    sink: DeltaSink, table: Path, name: str, value: str, said: str
) -> None:
    made(table, pa.schema([LONG, TEXT]))
    change(table, "metaData", configuration={name: value})
    with pytest.raises(RefusedError, match=said):
        sink.check_columns(COLUMNS)


@pytest.mark.parametrize("rule", ["delta.generationExpression", "delta.identity.start", "delta.invariants"])
def test_a_column_with_a_rule_is_refused_by_name(sink: DeltaSink, table: Path, rule: str) -> None:
    made(table, pa.schema([LONG, TEXT]))
    field = {"name": "id", "type": "long", "nullable": True, "metadata": {rule: "1"}}
    change(table, "metaData", schemaString=json.dumps({"type": "struct", "fields": [field]}))
    with pytest.raises(RefusedError, match=f"column 'id' of .*{rule}"):
        sink.check_columns(T.StructType().add("id", T.LongType()))


@pytest.mark.parametrize(
    ("columns", "by", "said"),
    [
        (T.StructType(), (), "no columns"),
        (T.StructType().add("a b", T.LongType()), (), r"column 'a b' has ' ' in its name"),
        (T.StructType().add("id", T.LongType()).add("ID", T.LongType()), (), "differ in case only"),
        (T.StructType().add("v", T.VariantType()), (), "column 'v' has the type variant"),
        (T.StructType().add("id", T.LongType()), ("day",), "partition_by names 'day'; the columns are id"),
        (T.StructType().add("id", T.LongType()), ("id",), "all columns are in partition_by"),
        (T.StructType().add("at", T.TimestampType()), ("at",), "column 'at' of partition_by is timestamp"),
        (T.StructType().add("a", T.DecimalType(8, 2)), ("a",), "column 'a' of partition_by is decimal"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(
    table: Path, columns: T.StructType, by: tuple[str, ...], said: str
) -> None:
    with pytest.raises(RefusedError, match=said):
        DeltaSink(name="lake", path=str(table), partition_by=by).check_columns(columns)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "A b"}, "name='A b'"),
        ({"path": "relative"}, "neither an absolute path nor a URL"),
        ({"path": "s3://key:secret@bucket/x"}, "credentials"),
        ({"schema": "any"}, "schema='any'"),
        ({"compression": "brotli"}, "compression='brotli'"),
        ({"max_file_bytes": 10}, "at least 1 MiB"),
        ({"compact_every": 0}, r"compact_every=0\): a number of commits"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(RefusedError, match=said) as refused:
        DeltaSink(**{"name": "lake", "path": "/tmp/x", **changed})
    assert "secret" not in str(refused.value)


def test_an_option_with_which_two_writers_of_a_version_succeed_is_refused(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = DeltaSink(name="lake", path=str(table), storage_options={"AWS_S3_ALLOW_UNSAFE_RENAME": "true"})
    with pytest.raises(RefusedError, match="AWS_S3_ALLOW_UNSAFE_RENAME='true' lets two writers"):
        sink.check_columns(COLUMNS)
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    with pytest.raises(RefusedError, match="AWS_S3_ALLOW_UNSAFE_RENAME='true' lets two writers"):
        DeltaSink(name="lake", path=str(table)).check_columns(COLUMNS)


def test_the_extra_that_is_missing_is_named(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(RefusedError, match=r"pip install 'airflow-provider-exactlyonce\[delta\]'"):
        DeltaSink(name="lake", path=str(table)).check_columns(COLUMNS)


def test_columns_that_the_table_lacks_are_added_where_that_is_declared(table: Path, tmp_path: Path) -> None:
    sink = DeltaSink(name="lake", path=str(table), schema="evolve")
    Live(sink, tmp_path).commit(rows(0, 2))
    wider = T.StructType().add("id", T.LongType()).add("k", T.StringType()).add("at", T.TimestampNTZType())
    at = datetime.datetime(2024, 1, 1)
    newer = Live(sink, tmp_path, run=2, columns=wider)
    newer.commit([{"id": 2, "k": "k2", "at": at}])
    older = Live(sink, tmp_path, run=3)
    older.commit(rows(3, 1))
    assert {row["id"]: row["at"] for row in read_delta(table)} == {0: None, 1: None, 2: at, 3: None}
    assert DeltaTable(table).to_pyarrow_table().num_rows == 4


def test_a_null_in_a_column_that_is_not_null_in_the_table_is_refused(
    sink: DeltaSink, table: Path, tmp_path: Path
) -> None:
    made(table, pa.schema([LONG, pa.field("k", pa.string(), nullable=False)]))
    live = Live(sink, tmp_path)
    live.commit(rows(0, 3))
    with pytest.raises(RecordRefusedError, match="column 'k' is NOT NULL in the table, and null in 1 rows"):
        live.stage([{"id": 1, "k": None}])


# Other writers


def foreign(table: Path, first: int, count: int) -> None:
    write_deltalake(str(table), pa.Table.from_pylist(rows(first, count), pa.schema([LONG, TEXT])), mode="append")


def test_whatever_others_write_meanwhile_a_commit_follows_it(sink: DeltaSink, table: Path, tmp_path: Path) -> None:
    live = Live(sink, tmp_path)
    entries = [live.commit(rows(0, 5)), live.commit(rows(5, 5))]
    changes: list[Callable[[], object]] = [
        lambda: foreign(table, 1000, 3),
        lambda: DeltaTable(table).optimize.compact(),
        lambda: DeltaTable(table).create_checkpoint(),
        lambda: DeltaTable(table).alter.add_columns([Field("more", PrimitiveType("string"), nullable=True)]),
        lambda: DeltaTable(table).delete("id >= 1000"),
        lambda: merge(table, 2000),
        lambda: DeltaTable(table).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False),
    ]
    for number, others_change in enumerate(changes):
        if number == 6:
            others_change()  # without a retention it removes whatever is not committed
        entry = live.stage(rows(100 * (number + 1), 2))
        if number < 6:
            others_change()
        live.committer.commit(entry)
        live.number += 1
        live.committer.settled(live.number)
        entries.append(entry)
    expected = [*range(10), *(100 * (number + 1) + one for number in range(7) for one in range(2)), 2000]
    assert ids(table) == sorted(expected)
    assert list(live.committer.audit(entries)) == []
    assert Live(sink, tmp_path, run=2).number == 9


def merge(table: Path, number: int) -> None:
    DeltaTable(table).merge(
        pa.table({"id": [number], "k": ["m"]}), "t.id = s.id", source_alias="s", target_alias="t"
    ).when_not_matched_insert({"id": "s.id", "k": "s.k"}).execute()


def test_small_files_are_written_together_after_so_many_commits(table: Path, tmp_path: Path) -> None:
    live = Live(DeltaSink(name="lake", path=str(table), compact_every=3), tmp_path)
    entries = [live.commit(rows(number * 2, 2)) for number in range(5)]
    assert len(DeltaTable(table).file_uris()) == 3, "one of three commits, and two"
    live.committer.settled(3)
    assert len(DeltaTable(table).file_uris()) == 3
    assert ids(table) == list(range(10))
    assert list(live.committer.audit(entries)) == []
    assert len(list((table / "exactlyonce").rglob("*.parquet"))) == 5, "older versions have them"
    assert Live(live.sink, tmp_path, run=2).number == 5


def test_two_pipelines_write_to_one_table(sink: DeltaSink, table: Path, tmp_path: Path) -> None:
    one, two = Live(sink, tmp_path), Live(sink, tmp_path, pipeline="other")
    entries: list[list[SinkEntry]] = [[], []]
    for number in range(5):
        first, second = one.stage(rows(number * 10, 5)), two.stage(rows(number * 10 + 5, 5))
        for live, entry, noted in ((one, first, entries[0]), (two, second, entries[1])):
            live.committer.commit(entry)
            live.number += 1
            live.committer.settled(live.number)
            noted.append(entry)
    assert ids(table) == list(range(50))
    assert list(one.committer.audit(entries[0])) == list(two.committer.audit(entries[1])) == []
    assert Live(sink, tmp_path, run=2).number == 5


def test_a_table_that_is_changed_so_that_the_rows_do_not_fit_stops_the_pipeline(
    sink: DeltaSink, table: Path, tmp_path: Path
) -> None:
    live = Live(sink, tmp_path)
    entry = live.stage(rows(0, 2))
    DeltaTable(table).alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 day"})
    with pytest.raises(RefusedError, match=r"setTransactionRetentionDuration='interval 1 day'"):
        live.committer.commit(entry)
    assert ids(table) == []


# Zombies


def test_a_zombie_with_an_older_or_a_fresh_handle_commits_nothing(sink: DeltaSink, table: Path, tmp_path: Path) -> None:
    old = Live(sink, tmp_path)
    entry = old.stage(rows(0, 2))
    successor = Live(sink, tmp_path, run=2)
    with pytest.raises(FencedError, match="run 1 of pipeline shop is superseded by run 2"):
        old.committer.commit(entry)
    again = sink.open(SinkContext(pipeline=PIPELINE, home=tmp_path))
    again.expect_columns(COLUMNS)
    with pytest.raises(FencedError):
        again.claim(1)
    successor.commit(rows(0, 2))
    assert ids(table) == [0, 1]


def test_what_delta_rs_itself_would_take_and_refuse(sink: DeltaSink, table: Path, tmp_path: Path) -> None:
    """What the sink rests on: without a retry a stale handle is refused, and with one a fresh handle never is."""
    Live(sink, tmp_path).commit(rows(0, 1))

    def put(handle: DeltaTable, version: int, retries: int) -> None:
        handle.create_write_transaction(
            [],
            mode="append",
            schema=handle.schema(),
            commit_properties=CommitProperties(
                app_transactions=[Transaction("zombie", version)], max_commit_retries=retries
            ),
        )

    stale, also_stale = DeltaTable(table), DeltaTable(table)
    put(DeltaTable(table), 5, 0)
    with pytest.raises(Exception, match="Failed to commit transaction: 0"):
        put(stale, 6, 0)
    with pytest.raises(Exception, match="Concurrent transaction failed"):
        put(also_stale, 6, 5)
    put(DeltaTable(table), 4, 5)
    assert DeltaTable(table).transaction_version("zombie") == 4, "a fresh handle sets it back"
    foreign_handle = DeltaTable(table)
    foreign(table, 10, 1)
    put(foreign_handle, 5, 5)
    assert DeltaTable(table).transaction_version("zombie") == 5, "a retry goes on over other applications"


def test_a_commit_that_the_table_has_or_a_table_that_was_made_anew_is_in_doubt(
    sink: DeltaSink, table: Path, tmp_path: Path
) -> None:
    live = Live(sink, tmp_path)
    live.commit(rows(0, 1))
    for number in (1, 0):
        live.number = number - 1
        with pytest.raises(CommitUnknownError, match=f"has commit 1 .* would write commit {number}: it was set back"):
            live.committer.commit(live.stage(rows(0, 1)))
        live.committer.claim(1)
    live.number = 1
    entry = live.stage(rows(1, 1))
    shutil.rmtree(table / "_delta_log")
    made(table, pa.schema([LONG, TEXT]))
    for _ in range(9):
        foreign(table, 100, 1)
    with pytest.raises((CommitUnknownError, BatchFailedError)):
        live.committer.commit(entry)
    assert live.committer.claim(1) is None, "the group of sinks then says that it was set back"
    assert ids(table) == [100] * 9


def test_what_a_task_that_ran_twice_has_left_goes_when_the_commit_is_settled(
    sink: DeltaSink, table: Path, tmp_path: Path
) -> None:
    live = Live(sink, tmp_path)
    entry = live.stage(rows(0, 2))
    (kept,) = (table / "exactlyonce").rglob("*.parquet")
    shutil.copy(kept, kept.with_name("00000-twice.parquet"))
    live.committer.commit(entry)
    assert len(list((table / "exactlyonce").rglob("*.parquet"))) == 2
    live.committer.settled(1)
    assert list((table / "exactlyonce").rglob("*.parquet")) == [kept]


def test_a_table_that_somebody_else_makes_meanwhile_is_used(
    sink: DeltaSink, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = DeltaLog.create

    def late(log: DeltaLog, *given: Any) -> None:
        made(table, pa.schema([TEXT, LONG]))
        real(log, *given)

    monkeypatch.setattr(DeltaLog, "create", late)
    Live(sink, tmp_path).commit(rows(0, 2))
    assert ids(table) == [0, 1]


# Unknown outcomes


def lose_answers(monkeypatch: pytest.MonkeyPatch, *, before: bool) -> None:
    real = DeltaLog.append

    def append(log: DeltaLog, *given: Any) -> None:
        if before:
            raise ConnectionError("the request was lost")
        real(log, *given)
        raise ConnectionError("the answer was lost")

    monkeypatch.setattr(DeltaLog, "append", append)


def test_a_commit_whose_answer_is_lost_is_found(
    sink: DeltaSink, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(sink, tmp_path)
    with monkeypatch.context() as patched:
        lose_answers(patched, before=False)
        live.commit(rows(0, 2))
    live.commit(rows(2, 2))
    assert ids(table) == [0, 1, 2, 3]


def test_a_commit_whose_answer_is_lost_until_a_successor_has_committed_keeps_its_files(
    sink: DeltaSink, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(sink, tmp_path)
    entry = live.stage(rows(0, 2))
    real = DeltaLog.append

    def append(log: DeltaLog, *given: Any) -> None:
        real(log, *given)
        monkeypatch.setattr(DeltaLog, "append", real)
        successor = Live(sink, tmp_path, run=2)
        assert successor.number == 1
        successor.commit(rows(2, 2))
        raise ConnectionError("the answer was lost")

    monkeypatch.setattr(DeltaLog, "append", append)
    with pytest.raises(CommitUnknownError, match="has commit 2 by another attempt than the one at 1"):
        live.committer.commit(entry)
    with pytest.raises(FencedError):
        live.committer.claim(1)
    assert ids(table) == [0, 1, 2, 3]


def test_a_commit_whose_request_is_lost_is_in_doubt_until_a_claim(
    sink: DeltaSink, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(sink, tmp_path)
    entry = live.stage(rows(0, 2))
    with monkeypatch.context() as patched:
        lose_answers(patched, before=True)
        with pytest.raises(CommitUnknownError, match=r"version 2 of table .* may be written or not"):
            live.committer.commit(entry)
    assert live.committer.claim(1) is None
    assert not list(table.rglob("*/shop.lake/*/*.parquet"))
    live.commit(rows(0, 2))
    assert ids(table) == [0, 1]


def test_a_request_that_arrives_after_the_claim_that_decided_is_refused(
    sink: DeltaSink, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(sink, tmp_path)
    entry = live.stage(rows(0, 2))
    late: list[Callable[[], None]] = []

    def delay(log: DeltaLog, files: Any, transactions: Any, metadata: Any) -> None:
        on_its_way = DeltaLog(str(table), {})
        assert on_its_way.open() and on_its_way.version == log.version
        late.append(lambda: on_its_way.append(files, transactions, metadata))
        raise ConnectionError("no answer yet")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaLog, "append", delay)
        with pytest.raises(CommitUnknownError):
            live.committer.commit(entry)
    assert live.committer.claim(1) is None
    with pytest.raises(CommitFailedError):
        late[0]()
    live.commit(rows(0, 2))
    assert ids(table) == [0, 1]


def test_a_hook_of_delta_rs_that_fails_after_the_commit_does_not_double_it(
    sink: DeltaSink, table: Path, tmp_path: Path
) -> None:
    made(table, pa.schema([LONG, TEXT]), configuration={"delta.checkpointInterval": "1"})
    live = Live(sink, tmp_path)
    (table / "_delta_log" / "_last_checkpoint").unlink(missing_ok=True)
    (table / "_delta_log" / "_last_checkpoint").mkdir()
    live_entry = live.stage(rows(0, 2))
    try:
        live.committer.commit(live_entry)
    finally:
        (table / "_delta_log" / "_last_checkpoint").rmdir()
    assert ids(table) == [0, 1]
    assert Live(sink, tmp_path, run=2).number == 1


# Retention


def cleaned(table: Path) -> None:
    """Leave nothing of the log before the newest version, as clean-up after its retention does."""
    handle = DeltaTable(table)
    handle.create_checkpoint()
    for file in (table / "_delta_log").glob("*.json"):
        if int(file.stem) < handle.version():
            file.unlink()


def test_the_newest_commit_is_known_when_its_version_was_cleaned_up(
    sink: DeltaSink, table: Path, tmp_path: Path
) -> None:
    live = Live(sink, tmp_path)
    entries = [live.commit(rows(0, 2)), live.commit(rows(2, 2))]
    foreign(table, 100, 1)
    cleaned(table)
    assert sink.open(SinkContext(pipeline=PIPELINE, home=tmp_path)).tail() == entries[-1]
    newer = Live(sink, tmp_path, run=2)
    assert newer.number == 2
    entries.append(newer.commit(rows(4, 2)))
    assert ids(table) == [0, 1, 2, 3, 4, 5, 100]
    assert list(newer.committer.audit(entries)) == []
    with pytest.raises(FencedError):
        live.committer.claim(1)


@pytest.mark.parametrize("superseded", [False, True])
def test_a_run_that_was_frozen_for_longer_than_the_log_is_kept_sees_what_happened(
    sink: DeltaSink, table: Path, tmp_path: Path, superseded: bool
) -> None:
    live = Live(sink, tmp_path)
    live.commit(rows(0, 2))
    entry, handle = live.stage(rows(2, 2)), DeltaTable(table)
    if superseded:
        Live(sink, tmp_path, run=2).commit(rows(2, 2))
    for _ in range(3):
        foreign(table, 100, 1)
    cleaned(table)
    with pytest.raises(DeltaError):
        handle.create_write_transaction(
            [], mode="append", schema=handle.schema(), commit_properties=CommitProperties(max_commit_retries=0)
        )
    if superseded:
        with pytest.raises(FencedError):
            live.committer.commit(entry)
    else:
        live.committer.commit(entry)
    assert ids(table) == [0, 1, 2, 3, 100, 100, 100]


def test_a_note_that_was_not_copied_is_found_in_the_log_and_its_loss_is_named(
    sink: DeltaSink, table: Path, tmp_path: Path
) -> None:
    live = Live(sink, tmp_path)
    entry = live.commit(rows(0, 2))
    for note in (table / "_exactlyonce").rglob("*.json"):
        note.unlink()
    assert sink.open(SinkContext(pipeline=PIPELINE, home=tmp_path)).tail() == entry
    assert Live(sink, tmp_path, run=2).number == 1
    for note in (table / "_exactlyonce").rglob("*.json"):
        note.unlink()
    foreign(table, 100, 1)
    cleaned(table)
    with pytest.raises(RefusedError, match="the note of commit 1 of shop/lake is missing"):
        sink.open(SinkContext(pipeline=PIPELINE, home=tmp_path)).tail()


def test_a_claim_removes_nothing_that_may_be_committed(sink: DeltaSink, table: Path, tmp_path: Path) -> None:
    live = Live(sink, tmp_path)
    entry = live.stage(rows(0, 2))
    live.committer.commit(entry)  # and dies before it is settled
    live.number += 1
    second = live.stage(rows(2, 2))
    live.committer.commit(second)
    assert len(list((table / "_exactlyonce").rglob("*.json"))) == 2
    DeltaTable(table).optimize.compact()
    before = sorted((table / "exactlyonce").rglob("*.parquet"))
    Live(sink, tmp_path, run=2)
    assert sorted((table / "exactlyonce").rglob("*.parquet")) == before, "older versions of the table have them"
    assert DeltaTable(table, version=2).to_pyarrow_table().num_rows == 2
    assert len(list((table / "_exactlyonce").rglob("*.json"))) == 1


def test_files_that_the_driver_does_not_see_are_not_committed(sink: DeltaSink, table: Path, tmp_path: Path) -> None:
    live = Live(sink, tmp_path)
    attempt = SinkAttempt(name="a", pipeline=PIPELINE, commit=1, run=1)
    live.committer.begin(attempt)
    with closing(live.committer.open_writer()(attempt, 0)) as writer:
        writer.write(pa.RecordBatch.from_pylist(rows(0, 2), live.committer._columns))
        told = writer.finish()
    (table / told["files"][0]["path"]).unlink()
    with pytest.raises(BatchFailedError, match="is not there for the driver: both have to see the same table"):
        live.committer.pre_commit([told])


# The audit


@pytest.fixture
def audited(sink: DeltaSink, tmp_path: Path) -> tuple[Live, list[SinkEntry]]:
    live = Live(sink, tmp_path)
    entries = [live.commit(rows(number * 10, 10)) for number in range(3)]
    assert list(live.committer.audit(entries)) == []
    return live, entries


def test_the_audit_names_files_that_are_gone_or_cut(audited: tuple[Live, list[SinkEntry]], table: Path) -> None:
    live, entries = audited
    first, second, _ = sorted((table / "exactlyonce").rglob("*.parquet"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])
    found = sorted(live.committer.audit(entries))
    assert len(found) == 2
    assert any(f"{first}: a file of the table with 10 rows is missing" in text for text in found)
    assert any(str(second) in text and "bytes, and the log says" in text for text in found)


def test_the_audit_names_rows_that_others_have_removed(audited: tuple[Live, list[SinkEntry]], table: Path) -> None:
    live, entries = audited
    DeltaTable(table).delete("id = 15")
    found = list(live.committer.audit(entries))
    assert len(found) == 1 and found[0].startswith("commit 2: version 5 (DELETE) has changed or removed rows")


def test_the_audit_names_rows_that_were_removed_after_a_compaction(
    audited: tuple[Live, list[SinkEntry]], table: Path
) -> None:
    live, entries = audited
    DeltaTable(table).optimize.compact()
    DeltaTable(table).delete("id = 15")
    found = list(live.committer.audit(entries))
    assert len(found) == 1 and found[0].startswith("commits 1 to 3: version 6 (DELETE) has changed or removed rows")


def test_the_audit_names_what_a_restore_of_the_table_has_removed(
    audited: tuple[Live, list[SinkEntry]], table: Path
) -> None:
    live, entries = audited
    DeltaTable(table).restore(2)
    found = list(live.committer.audit(entries))
    assert sorted(text.partition(":")[0] for text in found) == ["commit 2", "commit 3"]
    assert "(RESTORE)" in found[0]


def test_the_audit_passes_a_table_that_others_have_compacted_and_vacuumed(
    audited: tuple[Live, list[SinkEntry]], table: Path
) -> None:
    live, entries = audited
    DeltaTable(table).optimize.compact()
    DeltaTable(table).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    entries.append(live.commit(rows(30, 10)))
    assert list(live.committer.audit(entries)) == []
    assert ids(table) == list(range(40))


def test_the_audit_names_a_commit_that_the_ledger_lacks(audited: tuple[Live, list[SinkEntry]]) -> None:
    live, entries = audited
    assert list(live.committer.audit(entries[:2])) == [], "the next one may be under way"
    found = list(live.committer.audit(entries[:1]))
    assert len(found) == 1 and found[0].startswith("commit 3: table ") and "the pipeline's ledger not" in found[0]


def test_the_audit_says_that_there_is_no_table(sink: DeltaSink, tmp_path: Path) -> None:
    entry = SinkEntry(commit=1, run=1, lineage="l", batch=0, source={}, rows=1, digest=1)
    found = list(sink.open(SinkContext(pipeline=PIPELINE, home=tmp_path)).audit([entry]))
    assert len(found) == 1 and found[0].startswith("commit 1: there is no table ")
