"""The PostgreSQL sink's two halves against a real server, without Spark: every ending of an attempt."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.pq import TransactionStatus

from airflow_provider_exactlyonce.checkpoint.layout import parse_offsets
from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    CommitUnknownError,
    FencedError,
    RecordRefusedError,
    RefusedError,
)
from airflow_provider_exactlyonce.ledger.records import OtherSink
from airflow_provider_exactlyonce.streaming.commit.batch import Batch
from airflow_provider_exactlyonce.streaming.commit.sink_group import SinkGroup
from airflow_provider_exactlyonce.streaming.sinks.postgres import staging
from airflow_provider_exactlyonce.streaming.sinks.postgres.committer import PostgresCommitter
from airflow_provider_exactlyonce.streaming.sinks.postgres.connection import connect, parameters_of
from airflow_provider_exactlyonce.streaming.sinks.postgres.sink import PostgresSink
from airflow_provider_exactlyonce.streaming.sinks.postgres.writer import OpenPostgresWriter
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkContext, SinkEntry
from airflow_provider_exactlyonce.streaming.sinks.upsert.sink import UpsertSink
from tests.postgres import PostgresServer, environment, running
from tests.waiting import eventually

PIPELINE = "shop"
CONTEXT = SinkContext(pipeline=PIPELINE, home=Path("/nowhere"))
ROWS = [(1, "one"), (2, None), (3, '"quoted", \\.\n\\.\n, {}'), (4, "")]


class Case:
    """A table ``rows (id, v, commit)`` and the committers that write to it."""

    def __init__(self, server: PostgresServer, parameters: Mapping[str, str]) -> None:
        self.server, self.parameters = server, parameters
        self.opened: list[PostgresCommitter] = []

    def sql(self, statement: str, arguments: Any = None) -> list[tuple[Any, ...]]:
        with self.server.connect(self.parameters) as connection:
            cursor = connection.execute(statement, arguments)
            return cursor.fetchall() if cursor.description else []

    def open(self, run: int, **declared: Any) -> PostgresCommitter:
        committer = self.connected(PostgresSink(name="table", table="rows", **declared))
        committer.claim(run)
        return committer

    def connected(self, sink: PostgresSink, context: SinkContext = CONTEXT) -> PostgresCommitter:
        self.opened.append(PostgresCommitter(sink, context, patience_seconds=20))
        return self.opened[-1]

    def stage(
        self, committer: PostgresCommitter, run: int, commit: int, rows: list[tuple[Any, ...]], tasks: int = 1
    ) -> list[Any]:
        """Begin and write; returns what the tasks tell."""
        attempt = SinkAttempt(name=os.urandom(16).hex(), pipeline=PIPELINE, commit=commit, run=run)
        committer.begin(attempt)
        written = []
        for task in range(tasks):
            writer = committer.open_writer()(attempt, task)
            if share := rows[task::tasks]:
                names = ["id", "v", "gone"][: len(share[0])]
                columns = [pa.array(list(column)) for column in zip(*share, strict=True)]
                writer.write(pa.RecordBatch.from_arrays(columns, names=names))
            written.append(writer.finish())
            writer.close()
        return written

    def rows(self) -> list[tuple[Any, ...]]:
        return self.sql("SELECT id, v FROM rows ORDER BY id, v")

    def stages(self) -> list[str]:
        return [name for (name,) in self.sql("SELECT relname::text FROM pg_class WHERE relname LIKE 'stage\\_%'")]


def entry(commit: int, run: int, rows: int) -> SinkEntry:
    return SinkEntry(
        commit=commit, run=run, lineage="l", batch=commit - 1, source={"t": {0: (0, rows)}}, rows=rows, digest=7
    )


@pytest.fixture
def case(postgres: PostgresServer, database: Mapping[str, str]) -> Iterator[Case]:
    made = Case(postgres, database)
    made.sql("CREATE TABLE rows (id bigint PRIMARY KEY, v text, commit bigint)")
    yield made
    for committer in made.opened:
        committer.close()


def test_a_commit_is_what_the_tasks_wrote(case: Case) -> None:
    committer = case.open(1, commit_column="commit")
    committer.pre_commit(case.stage(committer, 1, 1, ROWS, tasks=3))
    assert case.rows() == []
    committer.commit(entry(1, 1, len(ROWS)))
    assert case.rows() == ROWS
    assert case.sql("SELECT DISTINCT commit FROM rows") == [(1,)]
    assert committer.tail() == entry(1, 1, len(ROWS))
    committer.settled(1)
    assert case.stages() == []
    assert list(committer.audit([entry(1, 1, len(ROWS))])) == []
    case.sql("DELETE FROM rows WHERE id = 2")
    assert list(committer.audit([entry(1, 1, 4)])) == [
        "commit 1: table public.rows has 3 rows of it, the pipeline's ledger 4"
    ]


@pytest.mark.parametrize("may_ask_for_the_system", [True, False])
def test_a_table_is_one_place_whatever_it_is_called_and_whoever_writes_to_it(
    case: Case, may_ask_for_the_system: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = case.parameters.get("user", "postgres")
    if not may_ask_for_the_system:
        user = f"u_{case.parameters['dbname']}"
        case.sql("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
        case.sql(f"CREATE ROLE {user} LOGIN")
        monkeypatch.setenv("EXACTLYONCE_POSTGRES", json.dumps({"postgres_default": {**case.parameters, "user": user}}))
    case.sql('CREATE TABLE "Rows" (id bigint PRIMARY KEY, v text)')
    case.sql("CREATE TABLE parted (id bigint PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    case.sql("CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (9)")
    case.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}")
    tables = ["rows", "public.rows", '"rows"', "ROWS", '"Rows"', "parted", "low"]
    places = [case.connected(PostgresSink(name="s", table=table)).place for table in tables]
    assert len(set(places[:4])) == 1
    assert len({*places[:4], *places[4:5], *places[5:]}) == 3, "a partition is its table"
    host, database = case.parameters["host"], case.parameters["dbname"]
    url = f"postgresql+psycopg://{user}@/{database}?host={host}"
    assert UpsertSink(name="u", url=url, table="rows", key="id").open(CONTEXT).place == places[0]
    assert UpsertSink(name="u", url=url, table="Rows", key="id").open(CONTEXT).place == places[4]
    again = [case.connected(PostgresSink(name="s", table=table)) for table in ("rows", "public.rows")]
    with pytest.raises(RefusedError, match="sinks one and other of pipeline shop write to one table"):
        SinkGroup(PIPELINE, dict(zip(("one", "other"), again, strict=True))).check(None, 0, 1)


def test_what_a_driver_of_another_role_has_left_ends_no_start(
    case: Case, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    case.stage(case.open(1), 1, 1, ROWS)
    user = f"u_{case.parameters['dbname']}"
    case.sql(f"CREATE ROLE {user} LOGIN")
    case.sql(f"GRANT USAGE, CREATE ON SCHEMA exactlyonce TO {user}")
    case.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA exactlyonce, public TO {user}")
    monkeypatch.setenv("EXACTLYONCE_POSTGRES", json.dumps({"postgres_default": {**case.parameters, "user": user}}))
    [left] = case.stages()
    with caplog.at_level("WARNING"):
        committer = case.open(2)
        committer.pre_commit(case.stage(committer, 2, 1, ROWS))
        committer.commit(entry(1, 2, len(ROWS)))
        committer.settled(1)
    assert (case.rows(), case.stages()) == (ROWS, [left])
    told = [record.getMessage() for record in caplog.records if left in record.getMessage()]
    assert [message.rpartition(": ")[2] for message in told] == [f"DROP TABLE exactlyonce.{left}"]


def test_a_commit_column_that_rows_are_counted_by_has_the_commits_of_one_pipeline(case: Case) -> None:
    case.sql("CREATE SCHEMA exactlyonce")  # of an older release: claims and commits are there, places are not
    for statement in staging._TABLES[1:3]:
        case.sql(statement)
    first = case.open(1, commit_column="commit")
    first.pre_commit(case.stage(first, 1, 1, ROWS))
    first.commit(entry(1, 1, len(ROWS)))
    case.open(2, commit_column="commit")
    second = PostgresSink(name="table", table="public.rows", commit_column="commit")
    other = SinkContext(pipeline="other", home=Path("/nowhere"))
    with pytest.raises(RefusedError, match=r"has the commits of sink table of pipeline .*DELETE FROM exactlyonce\.pl"):
        case.connected(second, other)
    case.sql("ALTER TABLE rows ADD COLUMN mine bigint")
    case.connected(replace(second, commit_column="mine"), other).claim(1)
    assert list(case.open(3, commit_column="commit").audit([entry(1, 1, len(ROWS))])) == []
    case.open(4)  # it does not use it any more
    case.connected(second, other).claim(2)
    with pytest.raises(RefusedError, match="of pipeline other"):
        case.open(5, commit_column="commit")


def test_an_aborted_attempt_leaves_nothing_and_a_task_that_was_not_told_of_is_not_counted(case: Case) -> None:
    committer = case.open(1)
    committer.pre_commit(case.stage(committer, 1, 1, ROWS))
    committer.abort()
    assert case.rows() == []
    written = case.stage(committer, 1, 1, ROWS, tasks=2)
    case.sql(f"INSERT INTO exactlyonce.{case.stages()[-1]} (exactlyonce_writer, id) VALUES (-1, 99)")
    committer.pre_commit(written)
    committer.commit(entry(1, 1, len(ROWS)))
    assert case.rows() == ROWS
    committer.settled(1)
    assert case.stages() == []


def test_staged_rows_that_are_gone_fail_the_attempt(case: Case) -> None:
    committer = case.open(1)
    written = case.stage(committer, 1, 1, ROWS)
    case.sql(f"TRUNCATE exactlyonce.{case.stages()[0]}")
    with pytest.raises(BatchFailedError, match=r"staged 4 rows of commit 1 for public\.rows, and 0 are there"):
        committer.pre_commit(written)


def test_a_server_that_dies_with_rows_staged_fails_the_attempt_and_no_more(monkeypatch: Any) -> None:
    with running() as server:
        monkeypatch.setenv(*next(iter(environment(server.parameters).items())))
        case = Case(server, server.parameters)
        case.sql("CREATE TABLE rows (id bigint PRIMARY KEY, v text, commit bigint)")
        committer = case.open(1)
        written = case.stage(committer, 1, 1, ROWS)
        server.kill()
        server.start()
        with pytest.raises(BatchFailedError):
            committer.pre_commit(written)  # on the connection that is gone
        with pytest.raises(BatchFailedError, match="staged 4 rows of commit 1 for public"):
            committer.pre_commit(written)
        committer.abort()
        committer.pre_commit(case.stage(committer, 1, 1, ROWS))
        committer.commit(entry(1, 1, 4))
        committer.settled(1)
        assert case.rows() == ROWS
        assert case.stages() == []
        committer.close()


def test_staged_texts_are_compared_as_the_target_compares_them(case: Case) -> None:
    case.sql('CREATE COLLATION "By code" FROM "POSIX"')
    case.sql('CREATE DOMAIN code AS text COLLATE "POSIX"')
    case.sql(
        'ALTER TABLE rows ALTER v TYPE text COLLATE "By code", ALTER v SET NOT NULL, ADD UNIQUE (v), '
        'ADD list varchar(3)[] COLLATE "C", ADD code code, ADD other code COLLATE "By code"'
    )
    case.sql("INSERT INTO rows VALUES (1, 'a'), (2, 'b')")
    committer = case.open(1, mode="upsert", key="v", order="v", deleted="gone")
    committer.pre_commit(case.stage(committer, 1, 1, [(1, "a", True)]))
    committer.commit(entry(1, 1, 1))
    assert case.rows() == [(2, "b")]
    collations = "SELECT attname, attcollation FROM pg_attribute WHERE attrelid = %s::regclass AND attcollation <> 0"
    collations += " ORDER BY attnum"
    [stage] = case.stages()
    assert case.sql(collations, [f"exactlyonce.{stage}"]) == case.sql(collations, ["rows"])


def test_an_upsert_takes_the_last_row_of_a_key_and_refuses_to_guess(case: Case) -> None:
    case.sql("INSERT INTO rows VALUES (1, 'a', 0), (2, 'b', 0), (3, 'c', 0)")
    committer = case.open(1, mode="upsert", key="id", order="v", deleted="gone", commit_column="commit")
    rows = [
        (1, "n", False),
        (1, "z", False),
        (2, "x", False),
        (2, "y", True),
        (3, "p", True),
        (3, "q", False),
        (4, "d", None),
    ]
    committer.pre_commit(case.stage(committer, 1, 1, rows, tasks=2))
    committer.commit(entry(1, 1, 7))
    assert case.sql("SELECT id, v, commit FROM rows ORDER BY id") == [(1, "z", 1), (3, "q", 1), (4, "d", 1)]
    with pytest.raises(RecordRefusedError, match=r"id=5 of table public\.rows 2 rows with its greatest v"):
        committer.pre_commit(case.stage(committer, 1, 2, [(5, "a", False), (5, "a", True)]))
    committer.abort()
    plain = case.open(2, mode="upsert", key=["id"])
    with pytest.raises(RecordRefusedError, match=r"commit 2 has for id=6 of table public\.rows 2 rows; name"):
        plain.pre_commit(case.stage(plain, 2, 2, [(6, "a"), (6, "b"), (7, "c")]))
    plain.abort()
    plain.pre_commit(case.stage(plain, 2, 2, [(1, "b"), (7, "c")]))
    plain.commit(entry(2, 2, 2))
    assert case.rows() == [(1, "b"), (3, "q"), (4, "d"), (7, "c")]


@pytest.mark.parametrize("order", [None, "id"])
@pytest.mark.parametrize("takes_over", [2, 9])
def test_a_row_takes_what_is_unique_over_from_one_that_its_batch_deletes(
    case: Case, order: str | None, takes_over: int
) -> None:
    """A row that is there, and one that is new: as another account that gets the address of one that is closed."""
    case.sql("ALTER TABLE rows ADD UNIQUE (v)")
    case.sql("INSERT INTO rows VALUES (1, 'x@y'), (2, 'z@y')")
    committer = case.open(1, mode="upsert", key="id", order=order, deleted="gone")
    committer.pre_commit(case.stage(committer, 1, 1, [(takes_over, "x@y", False), (1, "x@y", True)]))
    committer.commit(entry(1, 1, 2))
    assert case.rows() == sorted({2: "z@y", takes_over: "x@y"}.items())


@pytest.mark.parametrize("ending", ["finish", "close"])
def test_a_task_leaves_a_session_as_it_was_for_whom_a_pooler_gives_it_to(
    case: Case, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    committer = case.open(1)
    attempt = SinkAttempt(name="a" * 32, pipeline=PIPELINE, commit=1, run=1)
    committer.begin(attempt)
    pooled = connect(parameters_of("postgres_default"), "pooler")
    try:
        with monkeypatch.context() as patched:
            patched.setattr(pooled, "close", lambda: None)
            patched.setattr(f"{OpenPostgresWriter.__module__}.connect", lambda *_: pooled)
            task = committer.open_writer()(attempt, 0)
            task.write(pa.RecordBatch.from_pydict({"id": [1, 2], "v": ["a", "b"]}))
            getattr(task, ending)()
        changed = "SELECT name, setting FROM pg_settings WHERE source = 'session'"
        assert pooled.execute(changed).fetchall() == []
        assert pooled.info.transaction_status is TransactionStatus.IDLE
    finally:
        pooled.close()
    [stage] = case.stages()
    assert case.sql(f"SELECT count(*) FROM exactlyonce.{stage}") == [(2 if ending == "finish" else 0,)]


def test_a_delete_removes_the_keys_it_is_given(case: Case) -> None:
    case.sql("INSERT INTO rows SELECT n, 'x' FROM generate_series(1, 5) n")
    committer = case.open(1, mode="delete", key=["id"])
    committer.pre_commit(case.stage(committer, 1, 1, [(2,), (2,), (4,), (9,)], tasks=2))
    committer.commit(entry(1, 1, 4))
    assert [row[0] for row in case.rows()] == [1, 3, 5]


def test_a_row_that_a_constraint_refuses_is_named_before_the_decision(case: Case) -> None:
    case.sql("ALTER TABLE rows ADD CONSTRAINT unique_v UNIQUE (v) DEFERRABLE INITIALLY DEFERRED")
    case.sql("INSERT INTO rows VALUES (1, 'a')")
    committer = case.open(1)
    with pytest.raises(RecordRefusedError, match=r"rows refuses a row, constraint rows_pkey, commit 1: .*\(id\)=\(1\)"):
        committer.pre_commit(case.stage(committer, 1, 1, [(1, "b")]))
    committer.abort()
    with pytest.raises(RecordRefusedError, match=r"constraint unique_v, commit 1"):
        committer.pre_commit(case.stage(committer, 1, 1, [(2, "a")]))
    committer.abort()
    with pytest.raises(RecordRefusedError, match="0x00"):
        case.stage(committer, 1, 1, [(3, "nul \0")])


def test_a_superseded_run_writes_nothing(case: Case) -> None:
    old = case.open(1)
    written = case.stage(old, 1, 1, ROWS)
    new = case.open(2)
    with pytest.raises(FencedError, match="run 1 of shop is superseded by run 2, which has claimed sink table"):
        old.pre_commit(written)
    with pytest.raises(FencedError):
        old.claim(1)
    assert new.tail() is None
    assert case.rows() == []


@pytest.mark.parametrize("release", ["this", "0.1.0"])
def test_a_driver_whose_run_number_is_given_to_another_is_superseded_and_does_not_disturb_it(
    case: Case, release: str
) -> None:
    case.sql("ALTER TABLE rows DROP CONSTRAINT rows_pkey")
    old = case.open(1)
    old.pre_commit(case.stage(old, 1, 1, ROWS))
    old.commit(entry(1, 1, 4))
    new = case.open(1) if release == "this" else case.connected(PostgresSink(name="table", table="rows"))
    if release == "0.1.0":
        case.sql("UPDATE exactlyonce.claims SET run = 1, claimed = now() WHERE (pipeline, sink) = ('shop', 'table')")
        new._run, new._newest = 1, 1
    written = case.stage(old, 1, 2, [(9, "old")])
    with pytest.raises(FencedError, match="run 1 of shop is superseded by another driver with the same run number"):
        old.pre_commit(written)
    old.abort()
    new.pre_commit(case.stage(new, 1, 2, [(9, "new")]))
    with pytest.raises(FencedError):
        old.claim(1)
    new.commit(entry(2, 1, 1))
    assert case.rows() == [*ROWS, (9, "new")]


def test_claims_of_one_driver_and_one_time_do_not_fence_it(case: Case) -> None:
    committer = case.open(1)
    case.sql("UPDATE exactlyonce.claims SET claimed = '2999-01-01'")
    later = case.open(2)
    for _ in range(2):
        later.claim(2)
    ((claimed,),) = case.sql("SELECT claimed > '2999-01-01' FROM exactlyonce.claims")
    assert claimed
    later.pre_commit(case.stage(later, 2, 1, ROWS))
    later.commit(entry(1, 2, 4))
    with pytest.raises(FencedError, match="by run 2"):
        committer.claim(1)


def test_a_driver_that_is_stopped_with_the_lock_held_is_superseded_all_the_same(case: Case) -> None:
    old = case.open(1)
    old.pre_commit(case.stage(old, 1, 1, ROWS))
    new = case.open(2)
    with pytest.raises(BatchFailedError):
        old.commit(entry(1, 1, 4))
    new.pre_commit(case.stage(new, 2, 1, ROWS))
    new.commit(entry(1, 2, 4))
    assert case.rows() == ROWS
    assert new.tail() == entry(1, 2, 4)


def test_a_driver_that_is_frozen_with_the_lock_after_it_was_superseded_holds_up_no_commit(case: Case) -> None:
    old, new = case.open(1), case.open(2)
    written = case.stage(new, 2, 1, ROWS)
    old._connection.execute("BEGIN")
    assert staging.lock_claim(old._connection, old._key)
    new.pre_commit(written)
    ((patience,),) = new._connection.execute("SHOW lock_timeout").fetchall()
    assert patience == "0", "the table's own locks are waited for"
    new.commit(entry(1, 2, 4))
    assert case.rows() == ROWS
    with pytest.raises(psycopg.OperationalError):
        old._connection.execute("COMMIT")


@pytest.mark.parametrize("run", [1, 2])
def test_a_superseded_driver_waits_for_no_commit_of_its_successor_and_lets_it_be(case: Case, run: int) -> None:
    old = case.open(1)
    written = case.stage(old, 1, 1, [(9, "old")])
    new = case.open(run)
    new.pre_commit(case.stage(new, run, 1, ROWS))
    with pytest.raises(FencedError):
        old.pre_commit(written)
    new.commit(entry(1, run, 4))
    assert case.rows() == ROWS


def test_a_pre_commit_that_fails_gives_up_the_lock_at_once(case: Case) -> None:
    old = case.open(1)
    written = case.stage(old, 1, 1, ROWS)
    case.open(2)
    with pytest.raises(FencedError):
        old.pre_commit(written)
    assert case.sql("SELECT run FROM exactlyonce.claims FOR UPDATE NOWAIT") == [(2,)]


@pytest.mark.parametrize("left", [0, 1])
def test_a_database_that_is_set_back_while_its_driver_runs_gets_no_later_commit(case: Case, left: int) -> None:
    committer = case.open(1)
    for commit in (1, 2):
        committer.pre_commit(case.stage(committer, 1, commit, [(commit, "a")]))
        committer.commit(entry(commit, 1, 1))
    case.sql("DELETE FROM exactlyonce.commits WHERE number > %s", [left])
    case.sql("DELETE FROM rows WHERE id > %s", [left])
    committer.pre_commit(case.stage(committer, 1, 3, [(3, "a")]))
    with pytest.raises(CommitUnknownError, match=f"has commit {left} where this driver knows of commit 2, and would "):
        committer.commit(entry(3, 1, 1))
    assert [number for number, _ in case.rows()] == [*range(1, left + 1)]
    assert committer.claim(1) == (entry(1, 1, 1) if left else None)


def test_only_sessions_of_the_sinks_own_database_are_ended(case: Case) -> None:
    """Another database of the server may have a sink of the same pipeline's name, as of a test system."""
    other = case.server.create_database(f"{case.parameters['dbname']}_other")
    named = {"application_name": "exactlyonce 1"}
    with case.server.connect({**other, **named}) as there, case.server.connect({**case.parameters, **named}) as here:
        for session in (there, here):
            session.execute("BEGIN")
        with case.server.connect(case.parameters) as connection:
            assert staging.end_idle(connection, "exactlyonce 1") == 1
        there.execute("COMMIT")
        with pytest.raises(psycopg.OperationalError):
            here.execute("COMMIT")


def test_a_connection_lost_in_commit_is_resolved_under_the_lock(case: Case) -> None:
    """The old backend is still committing: it waits for a replica that is not there, as PostgreSQL does in COMMIT."""
    committer = case.open(1)
    committer.pre_commit(case.stage(committer, 1, 1, ROWS))
    case.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    case.sql("SELECT pg_reload_conf()")
    answers: list[Any] = []
    try:
        eventually(lambda: case.sql("SHOW synchronous_standby_names") == [("nobody",)], "the setting holds")
        descriptor = committer._connection.fileno()
        thread = threading.Thread(target=lambda: answers.append(_raised(lambda: committer.commit(entry(1, 1, 4)))))
        thread.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        eventually(lambda: case.sql(waiting) == [(1,)], "the backend waits in its COMMIT")
        with socket.socket(fileno=os.dup(descriptor)) as lost:
            lost.shutdown(socket.SHUT_RDWR)
        thread.join()
        assert isinstance(answers[0], CommitUnknownError)
        asked: list[Any] = []
        asking = threading.Thread(target=lambda: asked.append(committer.claim(1)))
        asking.start()
        asking.join(2.5)
        assert asking.is_alive()  # the answer waits for the old backend
        assert case.rows() == []
    finally:
        case.sql("ALTER SYSTEM RESET synchronous_standby_names")
        case.sql("SELECT pg_reload_conf()")
    asking.join()
    assert asked == [entry(1, 1, 4)]
    assert case.rows() == ROWS


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_a_claim_sees_a_commit_that_it_has_waited_for_whatever_the_databases_isolation_is(
    case: Case, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    case.sql(f"ALTER DATABASE {case.parameters['dbname']} SET default_transaction_isolation = '{isolation}'")
    old = case.open(1)
    old.pre_commit(case.stage(old, 1, 1, ROWS))
    locked = staging.lock_claim

    def locked_after_the_commit(connection: Any, key: staging.Key) -> staging.Claim | None:
        old.commit(entry(1, 1, 4))
        return locked(connection, key)

    new = case.connected(PostgresSink(name="table", table="rows"))
    with monkeypatch.context() as patched:
        patched.setattr(staging, "lock_claim", locked_after_the_commit)
        assert new.claim(2) == entry(1, 1, 4)
    new.pre_commit(case.stage(new, 2, 2, [(9, "nine")]))
    assert new._connection.execute("SHOW transaction_isolation").fetchall() == [("read committed",)]
    new.commit(entry(2, 2, 1))
    assert case.rows() == [*ROWS, (9, "nine")]


def test_a_superseded_run_can_not_note_a_batch_for_which_spark_has_run_no_task(case: Case) -> None:
    old = case.open(1)
    others = SinkGroup(PIPELINE, {"table": old})
    others.claim(1, None, 1)
    batch = Batch(
        lineage="l",
        number=0,
        offsets=parse_offsets('v1\n{"batchWatermarkMs": 0, "batchTimestampMs": 0}\n{}'),
        source={},
        source_topic_ids={},
    )
    others.begin(batch, 1)
    new = case.open(2)

    def finish() -> None:
        others.pre_commit()
        others.commit()

    with pytest.raises(FencedError, match=r"run 1 of .* is superseded by run 2"):
        finish()
    assert new.tail() is None
    again = SinkGroup(PIPELINE, {"table": new})
    again.claim(2, None, 1)
    again.begin(batch, 1)
    again.pre_commit()
    again.commit()
    assert again.sums == {"table": OtherSink(rows=0, digest=0)}
    noted = new.tail()
    assert noted is not None
    assert (noted.commit, noted.run, noted.rows, noted.digest) == (1, 2, 0, 0)


def test_lineage_is_told_the_table_and_its_server(case: Case) -> None:
    [(database, port)] = case.sql("SELECT current_database(), current_setting('port')")
    assert case.open(1).dataset == (f"postgres://{socket.gethostname()}:{port}", f"{database}.public.rows")


def test_a_table_that_is_named_like_a_stage_and_is_somebody_elses_stays(case: Case) -> None:
    committer = case.open(1)
    case.stage(committer, 1, 1, ROWS)
    [ours] = case.stages()
    theirs = f"{ours.rsplit('_', 2)[0]}_backup"
    case.sql(f"CREATE TABLE exactlyonce.{theirs} (id bigint)")
    committer.claim(1)
    assert case.stages() == [theirs]


def test_a_connection_lost_before_commit_is_resolved_as_not_committed(case: Case) -> None:
    committer = case.open(1)
    committer.pre_commit(case.stage(committer, 1, 1, ROWS))
    case.sql("SELECT pg_terminate_backend(%s)", [committer._connection.info.backend_pid])
    with pytest.raises(BatchFailedError):
        committer.commit(entry(1, 1, 4))
    assert committer.claim(1) is None
    assert case.stages() == []
    committer.pre_commit(case.stage(committer, 1, 1, ROWS))
    committer.commit(entry(1, 1, 4))
    assert case.rows() == ROWS


def _raised(call: Any) -> BaseException | None:
    try:
        call()
    except Exception as error:
        return error
    return None
