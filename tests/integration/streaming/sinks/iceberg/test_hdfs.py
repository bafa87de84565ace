"""A table on HDFS where Hadoop's own client is not installed, as in these tests: pyiceberg has no other."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkContext
from tests.integration.streaming.sinks.iceberg.lake import LONG, TEXT, IcebergLake
from tests.integration.streaming.sinks.lake import COLUMNS, PIPELINE

WAREHOUSE = "hdfs://localhost:1/lake"
SAID = (
    r"^table lake\.shop\.events is on HDFS, which pyiceberg reaches by Hadoop's libhdfs: "
    r"(Unable|Prior attempt) to load lib\w+.*\. "
    r"Install Hadoop .* JAVA_HOME, HADOOP_HOME, and CLASSPATH"
)


def test_a_new_table_on_hdfs_is_refused_without_a_client_of_it(lake: IcebergLake, tmp_path: Path) -> None:
    lake.properties["warehouse"] = WAREHOUSE
    with closing(lake.sink().open(SinkContext(pipeline=PIPELINE, home=tmp_path))) as committer:
        committer.expect_columns(COLUMNS)
        with pytest.raises(RefusedError, match=SAID):
            committer.open_writer()


def test_a_table_on_hdfs_is_refused_without_a_client_of_it(lake: IcebergLake) -> None:
    lake.create(LONG, TEXT)
    with closing(sqlite3.connect(lake.folder / "catalog.db")) as catalog, catalog:
        catalog.execute("UPDATE iceberg_tables SET metadata_location = ?", [f"{WAREHOUSE}/events/0.metadata.json"])
    with pytest.raises(RefusedError, match=SAID):
        lake.sink().check_columns(COLUMNS)
    with pytest.raises(RefusedError, match=SAID.replace("^table ", "^table .*")):
        lake.log().columns()
