"""The idempotent sink without Spark, on each way that its statements are made."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql import types as T

from airflow_provider_exactlyonce.exceptions import BatchFailedError, FencedError, RecordRefusedError, RefusedError
from airflow_provider_exactlyonce.streaming import KafkaSource, pipeline
from airflow_provider_exactlyonce.streaming.commit.sink_group import SinkGroup
from airflow_provider_exactlyonce.streaming.sinks.postgres.sink import PostgresSink
from airflow_provider_exactlyonce.streaming.sinks.spi import (
    IDEMPOTENT,
    IDEMPOTENT_UNFENCED,
    Sink,
    SinkAttempt,
    SinkContext,
    SinkEntry,
)
from airflow_provider_exactlyonce.streaming.sinks.upsert import committer as upsert_committer
from airflow_provider_exactlyonce.streaming.sinks.upsert import table as upsert_table
from airflow_provider_exactlyonce.streaming.sinks.upsert.sink import UpsertSink

CONTEXT = SinkContext(pipeline="p", home=Path("/nowhere"))


def entry(commit: int, run: int = 1) -> SinkEntry:
    return SinkEntry(commit=commit, run=run, lineage="l", batch=commit, source={}, rows=2, digest=1)


ROWS = sa.Table(
    "rows",
    sa.MetaData(),
    sa.Column("k", sa.String(9), primary_key=True),
    sa.Column("v", sa.Integer, sa.CheckConstraint("v < 100")),
    sa.Column("commit", sa.BigInteger),
)


@pytest.fixture
def maria(mariadb: str) -> Iterator[str]:
    """Give the URL of a database of its own."""
    server, name = sa.create_engine(mariadb, poolclass=sa.NullPool), f"test_{uuid.uuid4().hex[:8]}"
    with server.begin() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    yield server.url.set(database=name).render_as_string(hide_password=False)
    with server.begin() as connection:
        connection.execute(sa.text(f"DROP DATABASE {name}"))


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", "any other"])
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sa.Engine]:
    url = f"sqlite:///{tmp_path / 'rows.db'}"
    if request.param == "mariadb":
        url = request.getfixturevalue("maria")
    elif request.param == "postgresql":
        given: Mapping[str, str] = request.getfixturevalue("database")
        url = f"postgresql+psycopg://postgres@/{given['dbname']}?host={given['host']}"
    elif request.param == "any other":
        made = upsert_table.statements
        monkeypatch.setattr(upsert_table, "statements", lambda _, *rest: made("other", *rest))
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    ROWS.create(engine)
    yield engine
    engine.dispose()


def write(committer: Any, rows: list[tuple[str | None, int]], commit: int, run: int = 1) -> None:
    attempt = SinkAttempt(name=f"a{commit}", pipeline="p", commit=commit, run=run)
    committer.begin(attempt)
    writer = committer.open_writer()(attempt, 0)
    try:
        keys, values = zip(*rows, strict=True)
        writer.write(pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values, pa.int32())], names=["k", "v"]))
        committer.pre_commit([writer.finish()])
    finally:
        writer.close()


def rows(engine: sa.Engine) -> list[Any]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.select(ROWS).order_by(ROWS.c.k))]


def test_a_repeated_batch_leaves_what_one_leaves_and_a_late_task_overwrites_nothing(engine: sa.Engine) -> None:
    url = engine.url.render_as_string(hide_password=False)
    sink = UpsertSink(name="s", url=url, table="rows", key=["k"], commit_column="commit")
    sink.check_columns(T.StructType().add("k", T.StringType()).add("v", T.IntegerType()))
    old = sink.open(CONTEXT)
    assert old.tail() is None
    assert old.claim(1) is None
    for _ in range(2):
        write(old, [("a", 1), ("b", 2), ("a", 3)], commit=1)
    old.commit(entry(1))
    write(old, [("b", 5)], commit=2)
    old.commit(entry(2))
    write(old, [("b", 4), ("c", 6)], commit=1)  # a task of an attempt that was given up long ago
    assert rows(engine) == [("a", 3, 1), ("b", 5, 2), ("c", 6, 1)]
    with pytest.raises(RecordRefusedError, match="table rows refuses a row, commit 3"):
        write(old, [("d", 100)], commit=3)
    new = sink.open(CONTEXT)
    assert new.claim(2) == entry(2)
    with pytest.raises(FencedError, match="run 1 of p is superseded by run 2"):
        old.commit(entry(3))
    assert list(new.audit([entry(1), entry(2)])) == []
    assert list(new.audit([entry(3)])) == ["commit 3: exactlyonce_commits of sink s has no entry of it"]


def test_two_names_of_one_table_are_one_place(engine: sa.Engine) -> None:
    url = engine.url.render_as_string(hide_password=False)
    schema = {"sqlite": "main", "postgresql": "public"}.get(engine.dialect.name, str(engine.url.database))
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE more (k VARCHAR(9) PRIMARY KEY)"))
    first = UpsertSink(name="one", url=url, table="rows", key="k")
    more, same = replace(first, name="more", table="more"), replace(first, name="same", table=f"{schema}.rows")
    opened = {sink.name: sink.open(CONTEXT) for sink in (first, more, same)}
    SinkGroup("p", {name: opened[name] for name in ("one", "more")}).check(None, 0, 1)
    with pytest.raises(RefusedError, match="sinks one and same of pipeline p write to one table"):
        SinkGroup("p", opened).check(None, 0, 1)


def test_pipelines_whose_names_differ_in_case_have_a_claim_each(engine: sa.Engine) -> None:
    url = engine.url.render_as_string(hide_password=False)
    sink = UpsertSink(name="s", url=url, table="rows", key="k")
    big, small = (sink.open(replace(CONTEXT, pipeline=name)) for name in ("Shop", "shop"))
    assert (big.claim(7), small.claim(1)) == (None, None)
    small.commit(entry(1))
    big.commit(entry(1, run=7))
    assert (big.claim(8), small.claim(2)) == (entry(1, run=7), entry(1))
    other = replace(sink, name="S").open(replace(CONTEXT, pipeline="shop"))
    assert other.claim(1) is None


def test_a_table_of_an_older_release_that_takes_two_names_for_one_refuses_the_second(maria: str) -> None:
    name = "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
    tables = ("exactlyonce_claims", "exactlyonce_commits")
    with sa.create_engine(maria, poolclass=sa.NullPool).connect() as connection:
        ROWS.create(connection)
        for table, rest in zip(tables, ("run BIGINT NOT NULL", "number BIGINT, entry TEXT NOT NULL"), strict=True):
            key = "pipeline, sink, number" if "number" in rest else "pipeline, sink"
            columns = f"pipeline {name}, sink {name}, {rest}, PRIMARY KEY ({key})"
            connection.execute(sa.text(f"CREATE TABLE {table} ({columns})"))
        connection.commit()
        sink = UpsertSink(name="s", url=maria, table="rows", key="k")
        first, second = (sink.open(replace(CONTEXT, pipeline=name)) for name in ("Shop", "shop"))
        first.claim(1)
        first.commit(entry(1))
        for refused in (second.tail, lambda: second.claim(9), lambda: list(second.audit([]))):
            with pytest.raises(RefusedError, match=r"would share claim and commits.*COLLATE utf8mb4_bin"):
                refused()
        assert first.claim(2) == entry(1), "whose name it is goes on, without a migration"
        for table in tables:
            connection.execute(sa.text(f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"))
        assert (second.claim(1), first.claim(3)) == (None, entry(1))


@pytest.mark.parametrize(
    ("declared", "is_refused"),
    [
        ("k VARCHAR(9) PRIMARY KEY, v INT UNIQUE", True),
        ("k VARCHAR(9) PRIMARY KEY, v INT, UNIQUE INDEX (v, k)", False),
        ("n INT AUTO_INCREMENT PRIMARY KEY, k VARCHAR(9) UNIQUE, v INT", False),
    ],
)
def test_a_row_of_mariadb_can_conflict_with_its_key_only(maria: str, declared: str, is_refused: bool) -> None:
    with sa.create_engine(maria, poolclass=sa.NullPool).begin() as connection:
        connection.execute(sa.text(f"CREATE TABLE more ({declared})"))
    sink = UpsertSink(name="s", url=maria, table="more", key="k")
    with pytest.raises(RefusedError, match=r"more is unique over \(v\), too") if is_refused else nullcontext():
        sink.check_columns(T.StructType().add("k", T.StringType()).add("v", T.IntegerType()))


def test_a_commit_column_has_the_commits_of_one_pipeline(engine: sa.Engine) -> None:
    """Another's numbers begin anew: rows of commit 600 would never be replaced by commit 5 of the other."""
    url = engine.url.render_as_string(hide_password=False)
    sink = UpsertSink(name="s", url=url, table="rows", key="k", commit_column="commit")
    first, second = (sink.open(replace(CONTEXT, pipeline=name)) for name in ("p", "q"))
    first.claim(1)
    first.claim(2)
    with pytest.raises(RefusedError, match=r"has the commits of sink s of pipeline p.*DELETE FROM exactlyonce_places"):
        second.claim(1)
    with pytest.raises(RefusedError, match="has the commits of sink s of pipeline p"):
        sink.open(replace(CONTEXT, pipeline="q"))
    replace(sink, commit_column=None).open(replace(CONTEXT, pipeline="q")).claim(1)
    replace(sink, commit_column=None).open(replace(CONTEXT, pipeline="p")).claim(3)  # it does not use it any more
    second.claim(2)
    with pytest.raises(RefusedError, match="has the commits of sink s of pipeline q"):
        first.claim(4)


@pytest.mark.parametrize("made", [0, 2])
def test_a_commit_column_in_which_another_life_has_left_higher_numbers_is_refused(engine: sa.Engine, made: int) -> None:
    """Of a pipeline that was deleted, of another kind of sink, or of a dump of the table alone: no update would do."""
    sink = UpsertSink(
        name="s", url=engine.url.render_as_string(hide_password=False), table="rows", key="k", commit_column="commit"
    )
    with closing(sink.open(CONTEXT)) as committer:
        for commit in range(1, made + 1):
            committer.claim(commit)
            committer.commit(entry(commit))
    with engine.begin() as connection:
        connection.execute(ROWS.insert(), [{"k": "a", "v": 0, "commit": 5000}, {"k": "b", "v": 0, "commit": None}])
    committer, number = sink.open(CONTEXT), made + 1
    with pytest.raises(RefusedError, match=rf"has commit 5000, and the sink has made {made or 'none'}: ") as refused:
        committer.claim(number)
    found = [] if made == 0 else [f"commit 5000: {refused.value}"]
    assert list(committer.audit(map(entry, range(1, made + 1)))) == found
    statement = "UPDATE rows SET commit = NULL"
    assert statement in str(refused.value)
    with engine.begin() as connection:
        connection.execute(ROWS.update().values(commit=None))
    assert committer.claim(number) == (entry(made) if made else None)
    write(committer, [("a", 1), ("b", 2)], commit=number)
    assert rows(engine) == [("a", 1, number), ("b", 2, number)]


@pytest.mark.parametrize("joins_after", [0, 1000])
def test_rows_that_a_run_has_left_before_it_committed_are_the_sinks_own(engine: sa.Engine, joins_after: int) -> None:
    """Of its first commit, whatever its number is in a pipeline that ran before, and of a later one."""
    url = engine.url.render_as_string(hide_password=False)
    sink = UpsertSink(name="s", url=url, table="rows", key="k", commit_column="commit")
    for run, commit in enumerate((joins_after + 1, joins_after + 1, joins_after + 2, joins_after + 2), start=1):
        committer = sink.open(CONTEXT)
        newest = committer.claim(run)
        assert newest == committer.claim(run)
        assert (newest.commit if newest else None) == (joins_after + 1 if run > 2 else None)
        write(committer, [("a", run)], commit=commit, run=run)
        if run in (2, 4):
            committer.commit(entry(commit, run))
    assert rows(engine) == [("a", 4, joins_after + 2)]


@pytest.mark.parametrize("commit_column", [None, "commit"])
def test_a_frozen_writer_of_an_older_run_that_goes_on_after_a_newer_commit_undoes_it_only_if_it_is_not_fenced(
    engine: sa.Engine, commit_column: str | None
) -> None:
    url = engine.url.render_as_string(hide_password=False)
    sink = UpsertSink(name="s", url=url, table="rows", key="k", commit_column=commit_column)
    old, new = sink.open(CONTEXT), sink.open(CONTEXT)
    old.claim(1)
    attempt = SinkAttempt(name="frozen", pipeline="p", commit=1, run=1)
    old.begin(attempt)
    frozen = old.open_writer()(attempt, 0)
    assert new.claim(2) is None
    for commit, value in ((1, 10), (2, 20)):
        write(new, [("a", value)], commit=commit, run=2)
        new.commit(entry(commit, 2))
    frozen.write(pa.RecordBatch.from_pydict({"k": ["a"], "v": pa.array([10], pa.int32())}))
    frozen.finish()
    frozen.close()
    with pytest.raises(FencedError):
        old.commit(entry(1))
    [(_, value, _)] = rows(engine)
    assert (value, sink.guarantee) == ((10, IDEMPOTENT_UNFENCED) if commit_column is None else (20, IDEMPOTENT))


def test_rows_from_before_the_table_had_a_commit_column_are_older_than_all(engine: sa.Engine) -> None:
    url = engine.url.render_as_string(hide_password=False)
    for commit, commit_column in ((1, None), (2, "commit")):
        sink = UpsertSink(name="s", url=url, table="rows", key="k", commit_column=commit_column)
        committer = sink.open(CONTEXT)
        committer.claim(commit)
        write(committer, [("a", commit)], commit=commit)
    assert rows(engine) == [("a", 2, 2)]


def test_values_become_the_json_that_the_postgresql_sink_makes_of_them(engine: sa.Engine) -> None:
    if engine.dialect.name in ("mysql", "mariadb"):
        pytest.skip("MariaDB's JSON is a text")
    table = sa.Table("docs", sa.MetaData(), sa.Column("k", sa.String(9), primary_key=True), sa.Column("d", sa.JSON))
    table.create(engine)
    sink = UpsertSink(name="s", url=engine.url.render_as_string(hide_password=False), table="docs", key="k")
    committer = sink.open(CONTEXT)
    committer.claim(1)
    struct = {
        "dec": Decimal("1.50"),
        "day": dt.date(2024, 2, 29),
        "raw": b"\xff",
        "at": dt.datetime(2024, 7, 1),
        "n": None,
    }
    kinds = {
        "dec": pa.decimal128(9, 2),
        "day": pa.date32(),
        "raw": pa.binary(),
        "at": pa.timestamp("us"),
        "n": pa.int32(),
    }
    text = '{"dec":1.50,"day":"2024-02-29","raw":"/w==","at":"2024-07-01T00:00:00","n":null}'

    def stored(kind: pa.DataType, *values: Any) -> list[str | None]:
        keys = [str(number) for number in range(len(values))]
        with closing(committer.open_writer()(SinkAttempt(name="a", pipeline="p", commit=1, run=1), 0)) as writer:
            writer.write(pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values, kind)], names=["k", "d"]))
            writer.finish()
        with engine.connect() as connection:
            found = sa.select(sa.cast(sa.type_coerce(table.c.d, sa.Text), sa.Text)).order_by(table.c.k)
            return list(connection.execute(found.where(table.c.k.in_(keys))).scalars())

    assert stored(pa.struct(list(kinds.items())), struct, None) == [text, None]
    assert stored(pa.map_(pa.bool_(), pa.int32()), [(True, 1)], [], None) == ['{"true":1}', "{}", None]
    assert stored(pa.list_(pa.int32()), [1, None], None) == ["[1,null]", None]
    assert stored(pa.string(), '{"a": [1]}', None) == ['{"a": [1]}', None]
    with pytest.raises(RecordRefusedError, match="table docs, commit 1: nan has no JSON"):
        stored(pa.list_(pa.float64()), [0.5], [float("nan")])


@pytest.mark.parametrize("commit_column", [None, "c"])
def test_columns_of_any_name_keep_their_values(engine: sa.Engine, commit_column: str | None) -> None:
    names = ["k", "v", "key_k", "key_commit", "k_1", "param_1", "commit"]
    columns = [sa.Column(name, sa.String(20), primary_key=name == "k") for name in names]
    table = sa.Table("odd", sa.MetaData(), *columns, sa.Column("c", sa.Integer))
    table.create(engine)
    url = engine.url.render_as_string(hide_password=False)
    committer = UpsertSink(name="s", url=url, table="odd", key="k", commit_column=commit_column).open(CONTEXT)
    committer.claim(1)
    for commit in (1, 2):
        given = {name: [f"{name}-{commit}"] for name in names} | {"k": ["a"]}
        with closing(committer.open_writer()(SinkAttempt(name="a", pipeline="p", commit=commit, run=1), 0)) as writer:
            writer.write(pa.RecordBatch.from_pydict(given))
            writer.finish()
        with engine.connect() as connection:
            [row] = connection.execute(sa.select(table))
        assert row == (*(values[0] for values in given.values()), commit if commit_column else None)


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rows.db'}"
    with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
        connection.execute(sa.text("CREATE TABLE rows (k TEXT, v INTEGER)"))
        connection.execute(sa.text("CREATE TABLE more (k TEXT PRIMARY KEY, v INTEGER, w INTEGER NOT NULL)"))
    columns = T.StructType().add("k", T.StringType()).add("v", T.IntegerType())
    for declared, given, message in (
        ({}, columns, r"no primary key or unique constraint over \(k\)"),
        ({"table": "other"}, columns, "there is no table other"),
        ({"key": "z"}, columns, "the key has the column z, and the rows have k, v"),
        ({}, T.StructType().add("k", T.StringType()).add("w", T.IntegerType()), "table rows has no column w"),
        ({"commit_column": "v"}, columns, "the rows have commit_column='v' themselves"),
        ({"table": "more"}, columns, "column w of table more is NOT NULL and has no default, and the rows lack it"),
        ({"table": "no.such.schema"}, columns, "table no.such.schema can't be looked up in sqlite"),
        ({"url": "nonsense"}, columns, "the url of an UpsertSink can't be used"),
        ({"url": "postgres://me@here/db"}, columns, "names a driver that is not here: .*postgres"),
    ):
        sink = UpsertSink(**{"name": "s", "url": url, "table": "rows", "key": "k", **declared})
        with pytest.raises(RefusedError, match=message):
            sink.check_columns(given)


def test_a_password_is_not_shown() -> None:
    sink = UpsertSink(name="s", url="postgresql+psycopg://me:s3cret@localhost:1/db", table="rows", key="k")
    with pytest.raises(Exception, match="does not answer") as refused:
        sink.open(CONTEXT)
    assert "s3cret" not in f"{sink!r} {refused.value} {sink.facts}"


@pytest.mark.parametrize(
    "place", ["me:a@s3cret@localhost:1/db", "me@localhost:s3cret/db", "me@localhost:1/db?password=s3cret"]
)
def test_a_password_is_not_shown_where_it_does_not_belong(place: str) -> None:
    sink = UpsertSink(name="s", url=f"postgresql+psycopg://{place}", table="rows", key="k")
    with pytest.raises((RefusedError, BatchFailedError)) as refused:
        sink.open(CONTEXT)
    assert "s3cret" not in str(refused.value)


def test_a_row_whose_key_has_a_null_is_refused_since_it_would_be_inserted_each_time(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rows.db'}"
    with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
        connection.execute(sa.text("CREATE TABLE rows (k TEXT PRIMARY KEY, v INTEGER)"))
    committer = UpsertSink(name="s", url=url, table="rows", key="k").open(CONTEXT)
    committer.claim(1)
    with pytest.raises(
        RecordRefusedError, match="commit 1 has a row with a null in its key, which replaces none: k=None"
    ):
        write(committer, [("a", 1), (None, 2)], commit=1)


def test_the_statements_for_mysql_assign_the_compared_column_last() -> None:
    from sqlalchemy.dialects import mysql

    columns = ["k", "commit", "v"]
    table = sa.Table("rows", sa.MetaData(), *[sa.Column(name, sa.Integer) for name in columns])
    [statement] = upsert_table.statements("mysql", table, columns, ["k"], "commit")
    text = str(statement.compile(dialect=mysql.dialect()))
    assert text.index("v = if(") < text.index("commit = if(")


def test_two_sinks_of_a_pipeline_cannot_write_to_one_table() -> None:
    def declare(*sinks: Sink) -> None:
        pipeline(name="p", source=KafkaSource("in"), sink=list(sinks))

    url = "sqlite:////tmp/rows.db"
    upsert_sink, postgres_sink = (
        UpsertSink(name="one", url=url, table="rows", key="k"),
        PostgresSink(name="two", table="rows"),
    )
    declare(
        upsert_sink,
        postgres_sink,
        replace(upsert_sink, name="a", url="sqlite:////tmp/others.db"),
        replace(postgres_sink, name="b", table="more"),
    )
    for sink in (upsert_sink, postgres_sink):
        with pytest.raises(RefusedError, match=f"sinks {sink.name} and again of pipeline p write to one table"):
            declare(sink, replace(sink, name="again"))
    with pytest.raises(RefusedError, match="a sink of pipeline p has no name"):
        declare(replace(upsert_sink, name=""))


@pytest.mark.parametrize("at", ["CREATE TABLE exactlyonce_", "INSERT INTO exactlyonce_claims"])
@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_two_first_claims_at_once_both_take_place(engine: sa.Engine, at: str) -> None:
    """Of two pipelines in one database, or of two runs of which the first was frozen within its claim."""
    url = engine.url.render_as_string(hide_password=False)
    sink = UpsertSink(name="table", url=url, table="rows", key="k")
    others: list[str] = []

    def claim_first(_: object, __: object, statement: str, *more: object) -> None:
        if at in statement and not others:
            others.append(statement)
            with closing(sink.open(CONTEXT)) as other:
                other.claim(1)

    sa.event.listen(sa.Engine, "before_cursor_execute", claim_first)
    try:
        with closing(sink.open(CONTEXT)) as committer:
            assert committer.claim(2) is None
            assert len(others) == 1
            with closing(sink.open(CONTEXT)) as other, pytest.raises(FencedError):
                other.claim(1)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", claim_first)


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_a_driver_that_is_frozen_within_its_commit_is_waited_for_with_a_limit(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upsert_committer, "_LOCK_SECONDS", 1)
    sink = UpsertSink(name="table", url=engine.url.render_as_string(hide_password=False), table="rows", key="k")
    with closing(sink.open(CONTEXT)) as old, closing(sink.open(CONTEXT)) as new:
        old.claim(1)
        with engine.begin() as frozen:
            frozen.execute(sa.text("UPDATE exactlyonce_claims SET run = run"))
            with pytest.raises(BatchFailedError, match=r"claiming it for run 2: .*lock timeout"):
                new.claim(2)
        assert new.claim(2) is None
