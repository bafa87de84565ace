"""What a task of the idempotent sink says of a row that it can't write."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_provider_exactlyonce.exceptions import RecordRefusedError
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt
from airflow_provider_exactlyonce.streaming.sinks.upsert import table as upsert_table
from airflow_provider_exactlyonce.streaming.sinks.upsert.committer import OpenUpsertWriter
from airflow_provider_exactlyonce.streaming.spark import typed_errors


@pytest.mark.parametrize(
    "times",
    [
        pa.array([0, 253_402_300_800_000_000], pa.timestamp("us", "UTC")),
        pa.array([0, -70_000_000_000_000_000], pa.timestamp("us")),
        pa.array([0, 10_000_000], pa.date32()),
    ],
    ids=["after the year 9999", "before the year 1", "date"],
)
def test_a_row_with_a_time_that_python_has_none_of_is_refused(tmp_path: Path, times: pa.Array) -> None:
    url = f"sqlite:///{tmp_path}/target.db"
    with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
        columns = sa.Column("k", sa.Text, primary_key=True), sa.Column("at", sa.DateTime)
        sa.Table("t", sa.MetaData(), *columns).create(connection)
    opened = OpenUpsertWriter(url=url, table="t", key=["k"], commit_column=None)
    rows = pa.record_batch({"k": ["a", "b"], "at": times})
    attempt = SinkAttempt(name="a", pipeline="p", commit=7, run=1)
    with closing(opened(attempt, 0)) as writer, pytest.raises(RecordRefusedError) as raised:
        writer.write(rows)
    marked = typed_errors.find(str(raised.value))
    assert isinstance(marked, RecordRefusedError), "Spark passes on its text only"
    assert str(marked).startswith("table t, commit 7: a row has a date or time before the year 1 or after 9999")


@pytest.mark.parametrize("dialect", ["sqlite", "mssql"])
def test_of_rows_whose_keys_the_database_takes_for_one_the_last_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dialect: str
) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/target.db", poolclass=sa.NullPool)
    with engine.begin() as connection:
        columns = sa.Column("k", sa.Text(collation="NOCASE"), primary_key=True), sa.Column("v", sa.Integer)
        sa.Table("t", sa.MetaData(), *columns).create(connection)
    statements = upsert_table.statements
    monkeypatch.setattr(upsert_table, "statements", lambda name, *given: statements(dialect, *given))
    opened = OpenUpsertWriter(url=str(engine.url), table="t", key=["k"], commit_column=None)
    attempt = SinkAttempt(name="a", pipeline="p", commit=7, run=1)
    with closing(opened(attempt, 0)) as writer:
        writer.write(pa.record_batch({"k": ["Shop", "other", "shop"], "v": [1, 2, 3]}))
        writer.finish()
    with engine.begin() as connection:
        assert sorted(connection.execute(sa.text("SELECT lower(k), v FROM t"))) == [("other", 2), ("shop", 3)]
