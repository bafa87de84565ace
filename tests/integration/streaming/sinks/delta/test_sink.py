"""Delta tables: values, partitions, other writers and the audit, as readers see them."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyspark.sql import types as T

from airflow_provider_exactlyonce.exceptions import (
    RecordRefusedError,
    RefusedError,
)
from airflow_provider_exactlyonce.streaming import DeltaSink
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkContext, SinkEntry
from airflow_provider_exactlyonce.streaming.spark import typed_errors
from tests.delta_reader import read_delta
from tests.integration.streaming.sinks.delta.runs import PIPELINE, Live, foreign, ids, log_entry, merge, rows

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
    delta_table = DeltaTable(table)
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
        assert delta_table.to_pyarrow_dataset().to_table(filter=condition)["id"].to_pylist() == expected, column


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
    message = str(typed_errors.find(str(refused.value)))
    assert f"column 'k' of partition_by is the text {value!r}, which readers of Delta take for null" in message


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


# Other writers


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
    expected = [*range(10), *(100 * (number + 1) + offset for number in range(7) for offset in range(2)), 2000]
    assert ids(table) == sorted(expected)
    assert list(live.committer.audit(entries)) == []
    assert Live(sink, tmp_path, run=2).number == 9


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
    ours, theirs = Live(sink, tmp_path), Live(sink, tmp_path, pipeline="other")
    entries: list[list[SinkEntry]] = [[], []]
    for number in range(5):
        first, second = ours.stage(rows(number * 10, 5)), theirs.stage(rows(number * 10 + 5, 5))
        for live, entry, noted in ((ours, first, entries[0]), (theirs, second, entries[1])):
            live.committer.commit(entry)
            live.number += 1
            live.committer.settled(live.number)
            noted.append(entry)
    assert ids(table) == list(range(50))
    assert list(ours.committer.audit(entries[0])) == list(theirs.committer.audit(entries[1])) == []
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
    findings = sorted(live.committer.audit(entries))
    assert len(findings) == 2
    assert any(f"{first}: a file of the table with 10 rows is missing" in text for text in findings)
    assert any(str(second) in text and "bytes, and the log says" in text for text in findings)


def test_the_audit_names_rows_that_others_have_removed(audited: tuple[Live, list[SinkEntry]], table: Path) -> None:
    live, entries = audited
    DeltaTable(table).delete("id = 15")
    findings = list(live.committer.audit(entries))
    assert len(findings) == 1 and findings[0].startswith("commit 2: version 5 (DELETE) has changed or removed rows")


def test_the_audit_names_rows_that_were_removed_after_a_compaction(
    audited: tuple[Live, list[SinkEntry]], table: Path
) -> None:
    live, entries = audited
    DeltaTable(table).optimize.compact()
    DeltaTable(table).delete("id = 15")
    findings = list(live.committer.audit(entries))
    assert len(findings) == 1 and findings[0].startswith(
        "commits 1 to 3: version 6 (DELETE) has changed or removed rows"
    )


def test_the_audit_names_what_a_restore_of_the_table_has_removed(
    audited: tuple[Live, list[SinkEntry]], table: Path
) -> None:
    live, entries = audited
    DeltaTable(table).restore(2)
    findings = list(live.committer.audit(entries))
    assert sorted(text.partition(":")[0] for text in findings) == ["commit 2", "commit 3"]
    assert "(RESTORE)" in findings[0]


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
    findings = list(live.committer.audit(entries[:1]))
    assert (
        len(findings) == 1 and findings[0].startswith("commit 3: table ") and "the pipeline's ledger not" in findings[0]
    )


def test_the_audit_says_that_there_is_no_table(sink: DeltaSink, tmp_path: Path) -> None:
    entry = SinkEntry(commit=1, run=1, lineage="l", batch=0, source={}, rows=1, digest=1)
    findings = list(sink.open(SinkContext(pipeline=PIPELINE, home=tmp_path)).audit([entry]))
    assert len(findings) == 1 and findings[0].startswith("commit 1: there is no table ")
