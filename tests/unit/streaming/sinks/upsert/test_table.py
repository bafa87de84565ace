"""Which tables the idempotent sink refuses to write to."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import sqlalchemy as sa
from pyspark.sql import types as T

from airflow_provider_exactlyonce.exceptions import BatchFailedError, RecordRefusedError, RefusedError
from airflow_provider_exactlyonce.streaming.sinks.upsert import table as upsert_table


@pytest.mark.parametrize(
    ("unique", "over"),
    [
        (["id"], None),
        (["id", "v"], "v"),
        (["v", "id"], "v"),
        (["id", "v w"], "v, w"),
        (["id", "v id"], None),
        (["numbered", "id"], None),
        (["id", "v null"], None),
        (["id", "filled"], "filled"),
    ],
)
@pytest.mark.parametrize("dialect", ["mysql", "mariadb", "sqlite"])
def test_a_row_that_replaces_whichever_it_conflicts_with_can_conflict_with_its_key_only(
    monkeypatch: pytest.MonkeyPatch, dialect: str, unique: list[str], over: str | None
) -> None:
    table = sa.Table(
        "t",
        sa.MetaData(),
        *[sa.Column(name, sa.Integer, nullable=name != "id") for name in ("id", "v", "w", "null")],
        sa.Column("numbered", sa.Integer, autoincrement="numbered" in unique),
        sa.Column("filled", sa.Integer, server_default="1"),
        sa.PrimaryKeyConstraint(*unique[0].split()),
        *[sa.UniqueConstraint(*names.split()) for names in unique[1:]],
    )
    columns = T.StructType([T.StructField(name, T.IntegerType()) for name in ("id", "v", "w")])
    refused = over is not None and dialect != "sqlite"
    with sa.create_engine("sqlite://").connect() as connection:
        table.create(connection)
        monkeypatch.setattr(connection.dialect, "name", dialect)
        with pytest.raises(RefusedError, match=rf"t is unique over \({over}\), too") if refused else nullcontext():
            upsert_table.check_columns(connection, table, columns, ["id"], None)


@pytest.mark.parametrize(("is_lost", "error"), [(True, BatchFailedError), (False, RefusedError)])
def test_a_database_that_goes_away_while_a_table_is_looked_up_refuses_nothing(
    monkeypatch: pytest.MonkeyPatch, *, is_lost: bool, error: type[Exception]
) -> None:
    def reflect(*_: object, **__: object) -> Any:
        raise sa.exc.OperationalError("SELECT", {}, Exception("server closed"), connection_invalidated=is_lost)

    with sa.create_engine("sqlite://").connect() as connection:
        monkeypatch.setattr(sa, "Table", reflect)
        with pytest.raises(error, match="table t can't be looked up in sqlite"):
            upsert_table.find(connection, "t")


def test_a_value_without_json_is_refused_before_anything_runs() -> None:
    with sa.create_engine("sqlite://").connect() as connection:
        sa.Table("t", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("v", sa.JSON)).create(
            connection
        )
        table = upsert_table.find(connection, "t")
        columns = T.StructType().add("id", T.IntegerType())
        upsert_table.check_columns(
            connection, table, columns.add("v", T.StructType().add("d", T.DateType())), ["id"], None
        )
        lacking = T.StructType().add("id", T.IntegerType()).add("v", T.StructType().add("d", T.DayTimeIntervalType()))
        with pytest.raises(
            RefusedError, match=r"column v of table t is JSON, which interval day to second in struct<d:"
        ):
            upsert_table.check_columns(connection, table, lacking, ["id"], None)


def test_a_row_that_replaces_whichever_it_conflicts_with_can_conflict_with_no_expression() -> None:
    table = sa.Table("t", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    with pytest.raises(RefusedError, match=r"t is unique over \(an expression, or the beginning"):
        upsert_table._check_no_other_key(table, ["id"], [["id"], [None]], ["id"])


@pytest.mark.parametrize("dialect", ["mysql", "mariadb"])
def test_what_is_unique_by_the_beginning_of_a_text_is_no_key(dialect: str) -> None:
    """As SQLAlchemy reflects ``UNIQUE KEY u (k(10))``."""
    inspector = SimpleNamespace(
        get_pk_constraint=lambda *_: {"constrained_columns": ["id"]},
        get_unique_constraints=lambda *_: [{"name": "u", "column_names": ["k"], "duplicates_index": "u"}],
        get_indexes=lambda *_: [
            {"name": "u", "column_names": ["k"], "unique": True, "dialect_options": {f"{dialect}_length": {"k": 10}}},
            {"name": "w", "column_names": ["k", "v"], "unique": True},
        ],
    )
    unique = upsert_table._unique_sets(cast("sa.Inspector", inspector), sa.Table("t", sa.MetaData()))
    assert unique == [["id"], [None], ["k", "v"]]


@pytest.mark.parametrize(("number", "error"), [(1292, RecordRefusedError), (1205, BatchFailedError)])
def test_a_value_that_mysqls_column_has_none_of_is_an_error_of_the_row(number: int, error: type[Exception]) -> None:
    """As pymysql raises it of a time in the hour that a time zone leaves out, and of a text that is no date."""
    with pytest.raises(error), upsert_table.translated_errors("commit 7", "t"):
        raise sa.exc.OperationalError("INSERT", {}, Exception(number, "Incorrect datetime value"))
