"""A table that keeps less than its format does by itself is named in the driver's log, as a sink's and as a source."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_provider_exactlyonce.streaming.job.table_stream import TableReading, stream
from airflow_provider_exactlyonce.tables.positions import Position
from tests.integration.streaming.sinks.delta.lake import DeltaLake
from tests.integration.streaming.sinks.iceberg.lake import LONG, TEXT, IcebergLake
from tests.integration.streaming.sinks.lake import COLUMNS, Lake, Live, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(
    params=[
        ("delta.deletedFileRetentionDuration", "interval 1 hours"),
        ("delta.logRetentionDuration", "interval 1 days"),
        ("history.expire.max-snapshot-age-ms", "1000"),
        ("history.expire.min-snapshots-to-keep", "0"),
    ],
    ids=lambda given: given[0],
)
def forgetful(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Lake, str]:
    """Give a table with one such property, and how messages name it."""
    name, value = request.param
    (folder := tmp_path / "lake").mkdir()
    if name.startswith("delta."):
        delta = DeltaLake(folder)
        delta.create(pa.field("id", pa.int64()), pa.field("k", pa.string()), configuration={name: value})
        return delta, f"{name}={value!r}: "
    iceberg = IcebergLake(folder)
    iceberg.create(LONG, TEXT, properties={name: value})
    return iceberg, f"{name}={value!r}: "


def read_of(lake: Lake) -> TableReading:
    options = lake.properties if isinstance(lake, IcebergLake) else {}
    return TableReading(
        name=lake.log().name, columns=COLUMNS, start=Position(0), files=None, skips=False, options=options
    )


def test_a_sink_names_it_at_the_claim_and_commits(
    forgetful: tuple[Lake, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake, named = forgetful
    with caplog.at_level(logging.WARNING):
        live = Live(lake.sink(), tmp_path)
    [message] = [message for message in caplog.messages if named in message]
    assert message.startswith(f"{live.sink.where} has ")  # type: ignore[attr-defined]
    live.commit(rows(0, 2))
    assert lake.rows() == rows(0, 2)


def test_a_source_names_it_at_the_start(
    forgetful: tuple[Lake, str], spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    lake, named = forgetful
    name = lake.log().name
    with caplog.at_level(logging.WARNING):
        assert stream(spark, read_of(lake)).schema == COLUMNS
    [message] = [message for message in caplog.messages if named in message]
    assert message.startswith(f"table {name} has ")


def test_a_table_as_it_is_made_has_nothing_to_be_named(
    tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    lake = DeltaLake(tmp_path / "table")
    with caplog.at_level(logging.WARNING):
        Live(lake.sink(), tmp_path)
        stream(spark, read_of(lake))
    assert [message for message in caplog.messages if "Retention" in message] == []
