"""Delta tables: values, partitions, other writers and the audit, as readers see them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from airflow_provider_exactlyonce.exceptions import (
    CommitUnknownError,
    RecordRefusedError,
    RefusedError,
)
from airflow_provider_exactlyonce.streaming.sinks.delta import audit
from airflow_provider_exactlyonce.streaming.sinks.delta.log import LogEntry
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry
from airflow_provider_exactlyonce.streaming.spark import typed_errors
from tests.integration.streaming.sinks.delta.lake import DeltaLake
from tests.integration.streaming.sinks.lake import EVERY_TYPE, UTC, VALUES, Live, rows

# Values


def test_statistics_leave_out_files_and_no_row(lake: DeltaLake, tmp_path: Path) -> None:
    live = Live(lake.sink(), tmp_path, columns=EVERY_TYPE)
    empty = dict.fromkeys(EVERY_TYPE.names)
    live.commit(VALUES, [{**empty, "id": 10, "double": float("nan"), "text": "z", "amount": Decimal("5.25")}])
    delta_table = lake.table
    (first, second) = sorted(
        (json.loads(line)["add"] for line in lake.log_entry(2) if '"add"' in line), key=lambda add: add["path"]
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
        ("double", pa.compute.field("double") > 1e300, [1]),  # it is infinite
    ):
        assert delta_table.to_pyarrow_dataset().to_table(filter=condition)["id"].to_pylist() == expected, column


def test_partitions_of_other_types_are_read_as_such(lake: DeltaLake, tmp_path: Path) -> None:
    columns = T.StructType(
        [
            T.StructField("id", T.LongType()),
            T.StructField("day", T.DateType()),
            T.StructField("flag", T.BooleanType()),
            T.StructField("n", T.ShortType()),
        ]
    )
    sink = lake.sink(partition_by=["day", "flag", "n"])
    given: list[dict[str, Any]] = [
        {"id": 1, "day": datetime.date(2024, 2, 29), "flag": False, "n": -3},
        {"id": 2, "day": None, "flag": None, "n": None},
    ]
    Live(sink, tmp_path, columns=columns).commit(given)
    assert lake.library_rows() == given


@pytest.mark.parametrize("value", ["", "__HIVE_DEFAULT_PARTITION__"])
def test_a_text_in_a_partition_that_readers_take_for_null_is_refused(
    lake: DeltaLake, tmp_path: Path, value: str
) -> None:
    live = Live(lake.sink(partition_by="k"), tmp_path)
    with pytest.raises(RecordRefusedError) as refused:
        live.stage([{"id": 1, "k": value}])
    message = str(typed_errors.find(str(refused.value)))
    assert f"column 'k' of partition_by is the text {value!r}, which readers of Delta take for null" in message


def test_a_text_that_makes_no_directory_is_refused(lake: DeltaLake, tmp_path: Path) -> None:
    live = Live(lake.sink(partition_by="k"), tmp_path)
    with pytest.raises(RecordRefusedError, match="makes a directory's name of 302 bytes"):
        live.stage([{"id": 1, "k": "x" * 300}])


# Other writers


def test_whatever_others_write_meanwhile_a_commit_follows_it(lake: DeltaLake, tmp_path: Path) -> None:
    live = Live(lake.sink(), tmp_path)
    entries = [live.commit(rows(0, 5)), live.commit(rows(5, 5))]
    changes: list[Callable[[], object]] = [
        lambda: lake.write(1000, 3),
        lambda: lake.compact(),
        lambda: lake.table.create_checkpoint(),
        lambda: lake.widen(),
        lambda: lake.delete("id >= 1000"),
        lambda: lake.merge(2000),
        lambda: lake.vacuum(),
    ]
    for number, others_change in enumerate(changes):
        if number == 6:
            others_change()  # without a retention it removes whatever is not committed
        entry = live.stage(rows(100 * (number + 1), 2))
        if number < 6:
            others_change()
        live.decide(entry)
        entries.append(entry)
    expected = [*range(10), *(100 * (number + 1) + offset for number in range(7) for offset in range(2)), 2000]
    assert lake.ids() == sorted(expected)
    assert live.audit(entries) == []
    assert Live(lake.sink(), tmp_path, run=2).number == 9


def test_a_table_that_is_changed_so_that_the_rows_do_not_fit_stops_the_pipeline(
    lake: DeltaLake, tmp_path: Path
) -> None:
    live = Live(lake.sink(), tmp_path)
    entry = live.stage(rows(0, 2))
    lake.table.alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 day"})
    with pytest.raises(RefusedError, match=r"setTransactionRetentionDuration='interval 1 day'"):
        live.committer.commit(entry)
    assert lake.ids() == []


# The audit


@pytest.fixture
def audited(lake: DeltaLake, tmp_path: Path) -> tuple[Live, list[SinkEntry]]:
    live = Live(lake.sink(), tmp_path)
    entries = [live.commit(rows(number * 10, 10)) for number in range(3)]
    assert live.audit(entries) == []
    return live, entries


def test_the_audit_names_rows_that_were_removed_after_a_compaction(
    audited: tuple[Live, list[SinkEntry]], lake: DeltaLake
) -> None:
    live, entries = audited
    lake.compact()
    lake.delete("id = 15")
    findings = live.audit(entries)
    assert len(findings) == 1 and findings[0].startswith(
        "commits 1 to 3: version 6 (DELETE) has changed or removed rows"
    )


def test_a_commit_whose_version_others_have_written_over_is_missed_by_the_next_one_and_by_the_audit(
    audited: tuple[Live, list[SinkEntry]], lake: DeltaLake
) -> None:
    """On S3 delta-spark may do so, which writes without a condition."""
    live, entries = audited
    (lake.path / "_delta_log" / f"{lake.table.version():020d}.json").write_text('{"commitInfo":{"operation":"WRITE"}}')
    entry = live.stage(rows(30, 10))
    with pytest.raises(CommitUnknownError, match=r"has commit 2 .* would write commit 4: it was set back"):
        live.committer.commit(entry)
    (finding,) = live.audit(entries)
    assert finding.startswith("commit 3: ")


def test_the_audit_goes_on_when_the_log_is_cleaned_up_meanwhile(
    audited: tuple[Live, list[SinkEntry]], lake: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, entries = audited

    def clean_up(*given: Any) -> Any:
        monkeypatch.undo()
        lake.expire()
        return LogEntry.read(*given)

    monkeypatch.setattr(audit, "LogEntry", SimpleNamespace(read=clean_up))
    assert live.audit(entries) == []
    assert [text for text in live.audit(entries[:1]) if "commit 3: " in text], "which is still compared"


def test_the_audit_passes_a_table_that_others_have_compacted_and_vacuumed(
    audited: tuple[Live, list[SinkEntry]], lake: DeltaLake
) -> None:
    live, entries = audited
    lake.compact()
    lake.vacuum()
    entries.append(live.commit(rows(30, 10)))
    assert live.audit(entries) == []
    assert lake.ids() == list(range(40))
