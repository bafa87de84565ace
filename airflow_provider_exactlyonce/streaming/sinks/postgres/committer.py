"""The driver's half of the PostgreSQL sink: one transaction moves the staged rows and notes the commit."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from typing_extensions import override

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    CommitUnknownError,
    DataError,
    FencedError,
    RecordRefusedError,
    invariant,
    required,
)
from airflow_provider_exactlyonce.polling import retry_while
from airflow_provider_exactlyonce.streaming.sinks.ledger_comparison import compare, not_as_known
from airflow_provider_exactlyonce.streaming.sinks.postgres import staging
from airflow_provider_exactlyonce.streaming.sinks.postgres.connection import (
    AMBIGUOUS_KEY,
    BEGIN,
    connect,
    for_tasks,
    meaning,
    parameters_of,
    translated_errors,
)
from airflow_provider_exactlyonce.streaming.sinks.postgres.statements import StagedMove
from airflow_provider_exactlyonce.streaming.sinks.postgres.table import find
from airflow_provider_exactlyonce.streaming.sinks.postgres.writer import OpenPostgresWriter
from airflow_provider_exactlyonce.streaming.sinks.spi import (
    OpenWriter,
    SinkAttempt,
    SinkCommitter,
    SinkContext,
    SinkEntry,
)

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.streaming.sinks.postgres.declaration import PostgresDeclaration

log = logging.getLogger(__name__)

#: How long a claim waits for a server that starts, and claim and pre-commit for a commit that is under way.
_PATIENCE_SECONDS: Final = 120.0
_PAUSE_SECONDS: Final = 0.5
_SHORT_WAIT: Final = "SET LOCAL lock_timeout = '1s'"

_T = TypeVar("_T")
_Connection = psycopg.Connection[Any]


class PostgresCommitter(SinkCommitter):
    """Holds one connection, opened again when it is lost.

    :raises RefusedError: when the table or a right is missing
    :raises BatchFailedError: when the server does not answer
    """

    def __init__(
        self, sink: PostgresDeclaration, context: SinkContext, *, patience_seconds: float = _PATIENCE_SECONDS
    ) -> None:
        self._sink: Final = sink
        self._key: Final = (context.pipeline, sink.name)
        self._application: Final = f"exactlyonce {staging.identity(self._key)}"
        self._patience_seconds: Final = patience_seconds
        self._parameters: Final = parameters_of(sink.conn_id)
        self._connection: _Connection = connect(self._parameters, self._application)
        try:
            self._table: Final = find(self._connection, sink.table, sink.rights)
            if self._counted_column is not None:
                with translated_errors(f"checking its column {self._counted_column}", str(self._table)):
                    staging.check_commit_column(self._connection, self._key, self._table, self._counted_column)
        except BaseException:
            self._connection.close()
            raise
        server = self._connection.info
        host = socket.gethostname() if server.host.startswith("/") else server.host  # else it is a socket's directory
        self._dataset: Final = f"postgres://{host}:{server.port}", f"{server.dbname}.{self._table}"
        self._run = 0
        self._claims: Final[list[datetime]] = []  # of all that this one has tried
        self._has_claimed = False
        self._newest = 0  # the commit that the sink's ledger has last
        self._attempt: SinkAttempt | None = None
        self._left: Final = set[str]()  # staging tables of another role, which were told of

    @property
    @override
    def place(self) -> object:
        with translated_errors("asking where it writes", str(self._table)):
            return staging.place_of(self._session(), self._table)

    @property
    @override
    def dataset(self) -> tuple[str, str]:
        return self._dataset

    @override
    def tail(self) -> SinkEntry | None:
        with translated_errors("reading the sink's ledger", str(self._table)):
            return staging.newest(self._session(), self._key)

    @override
    def claim(self, run: int) -> SinkEntry | None:
        self._run, self._attempt = run, None
        self._connection.close()  # ends its transaction; a commit that was sent is decided before the lock is ours
        what = f"claiming {self._table} for run {run}"
        entry = self._patiently(what, partial(self._claim, run), lambda error: isinstance(error, BatchFailedError))
        self._has_claimed, self._newest = True, entry.commit if entry else 0
        self._drop_stages()
        return entry

    @override
    def open_writer(self) -> OpenWriter:
        return OpenPostgresWriter(
            parameters=for_tasks(self._parameters, self._session()),
            application=f"{self._application} task",
            table=str(self._table),
            stage_of=partial(staging.stage_of, key=self._key),
            json_columns=frozenset(column.name for column in self._table.columns.values() if column.is_json),
        )

    @override
    def begin(self, attempt: SinkAttempt) -> None:
        stage = staging.stage_of(attempt, self._key)
        with translated_errors(f"beginning commit {attempt.commit}", str(self._table)):
            staging.make_stage(self._session(), stage, self._table, self._sink.deleted)
        self._attempt = attempt

    @override
    def pre_commit(self, written: Sequence[Mapping[str, Any]]) -> None:
        """Move the rows, under the claim's lock, in a transaction that stays open for the decision.

        :raises FencedError: when another driver has claimed the sink since
        """
        attempt = required(self._attempt, "an attempt is open")
        what, rows = f"commit {attempt.commit}", sum(task["rows"] for task in written)
        connection = self._patiently(what, self._begin_locked, _is_locked)
        try:
            if rows:
                self._move(connection, attempt, written, rows)
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # no row is refused after the decision
        except psycopg.Error as error:
            connection.close()
            if error.sqlstate == AMBIGUOUS_KEY:
                raise self._ambiguous(attempt, written) from error
            raise meaning(error, what, str(self._table)) from error

    @override
    def commit(self, entry: SinkEntry) -> None:
        connection = self._connection
        invariant(connection.info.transaction_status is not TransactionStatus.IDLE, "commit follows pre-commit")
        try:
            is_next = staging.note(connection, self._key, entry, after=self._newest)
            newest = None if is_next else staging.newest(connection, self._key)
        except psycopg.Error as error:
            raise meaning(error, f"noting commit {entry.commit}", str(self._table)) from error
        if not is_next:
            connection.close()
            raise not_as_known(self._sink.name, newest.commit if newest else 0, self._newest, entry)
        failpoints.reach("before-sink-decision")
        try:
            connection.execute("COMMIT")
        except psycopg.Error as error:
            if connection.closed or connection.broken:
                raise CommitUnknownError(
                    f"PostgreSQL did not answer to commit {entry.commit} of sink {self._sink.name}: {error}"
                ) from error
            raise meaning(error, f"commit {entry.commit}", str(self._table)) from error
        self._newest, self._attempt = entry.commit, None

    @override
    def abort(self) -> None:
        self._connection.close()
        self._attempt = None

    @override
    def settled(self, commit: int) -> None:
        self._drop_stages()

    @override
    def forget(self, before: int) -> None:
        with translated_errors("forgetting old commits", str(self._table)):
            staging.forget(self._session(), self._key, before)

    @override
    def audit(self, commits: Iterable[SinkEntry]) -> Iterable[str]:
        with translated_errors("auditing", str(self._table)):
            entries = staging.entries(self._session(), self._key)
            rows_by_commit = self._rows_by_commit()

        def count(commit: SinkEntry) -> str | None:
            rows = commit.rows if rows_by_commit is None else rows_by_commit.get(commit.commit, 0)
            if rows == commit.rows:
                return None
            return f"table {self._table} has {rows} rows of it, the pipeline's ledger {commit.rows}"

        return compare(entries, commits, f"{staging.SCHEMA}.commits of sink {self._sink.name}", check=count)

    @override
    def close(self) -> None:
        self._connection.close()

    def _session(self) -> _Connection:
        if self._connection.closed or self._connection.broken:
            self._connection.close()
            self._connection = connect(self._parameters, self._application)
        return self._connection

    def _claim(self, run: int) -> SinkEntry | None:
        connection = self._session()
        staging.make_tables(connection)
        with connection.transaction():
            self._check_claim(claim := staging.read_claim(connection, self._key))
            connection.execute(_SHORT_WAIT)
            if claim is None:
                insert = f"INSERT INTO {staging.SCHEMA}.claims (pipeline, sink, run) VALUES (%s, %s, 0)"
                connection.execute(f"{insert} ON CONFLICT DO NOTHING", self._key)
            self._check_claim(staging.lock_claim(connection, self._key))
            self._claims.append(staging.write_claim(connection, self._key, run))
            staging.take_commit_column(connection, self._key, self._table, self._counted_column)
            return staging.newest(connection, self._key)

    def _begin_locked(self) -> _Connection:
        """Begin a transaction with the claim's lock; on a failure close the connection, so that no lock is left."""
        connection = self._session()
        try:
            connection.execute(BEGIN)
            connection.execute(_SHORT_WAIT)
            self._check_claim(staging.lock_claim(connection, self._key))
            connection.execute("SET LOCAL lock_timeout TO DEFAULT")  # the table's locks are waited for
        except Exception:
            connection.close()
            raise
        return connection

    def _patiently(self, what: str, ask: Callable[[], _T], passes: Callable[[Exception], bool]) -> _T:
        """Repeat until there is an answer.

        A commit under way holds the lock, and the answer waits for it. An idle session that holds it, of a driver that
        is stopped or gone, is ended: its commit was not sent.

        :param what: the action, for messages
        :param passes: whether an error may be another answer a little later
        """

        def ask_once() -> _T:
            with translated_errors(what, str(self._table)):
                try:
                    return ask()
                except psycopg.errors.LockNotAvailable:
                    connection = self._session()
                    self._check_claim(staging.read_claim(connection, self._key))  # else a successor's would be ended
                    ended = staging.end_idle(connection, self._application)
                    log.info("a commit into %s is under way; %d idle sessions were ended", self._table, ended)
                    raise

        def asks_again(error: Exception) -> bool:
            if not passes(error):
                return False
            log.info("%s; asking again", error)
            return True

        return retry_while(asks_again, ask_once, seconds=self._patience_seconds, poll_seconds=_PAUSE_SECONDS)

    def _check_claim(self, claim: staging.Claim | None) -> None:
        run, claimed = claim or (0, None)
        is_another = self._has_claimed and run == self._run and claimed not in self._claims
        if run > self._run or is_another:
            successor = "another driver with the same run number" if is_another else f"run {run}"
            raise FencedError(
                f"run {self._run} of {self._key[0]} is superseded by {successor}, which has claimed sink {self._key[1]}"
            )

    def _move(
        self, connection: _Connection, attempt: SinkAttempt, written: Sequence[Mapping[str, Any]], rows: int
    ) -> None:
        move, arguments = self._staged(attempt, written)
        staged = connection.execute(move.count(), arguments).fetchone()
        if staged is None or staged[0] != rows:
            raise BatchFailedError(
                f"the tasks have staged {rows} rows of commit {attempt.commit} for {self._table}, and "
                f"{staged and staged[0]} are there: the server was restarted, or somebody removed them"
            )
        if self._sink.deleted is not None:
            if connection.execute(move.ambiguous(), arguments).fetchone():
                raise self._ambiguous(attempt, written)
            # In a statement of its own and first: another row of the batch may have a unique value of one of these.
            connection.execute(move.delete_marked(), arguments)
        statement = {"insert": move.insert, "upsert": move.upsert, "delete": move.delete}[self._sink.mode]
        connection.execute(statement(), arguments)

    def _staged(
        self, attempt: SinkAttempt, written: Sequence[Mapping[str, Any]]
    ) -> tuple[StagedMove, Mapping[str, Any]]:
        columns = next(task["columns"] for task in written if task["rows"])
        move = StagedMove(
            table=self._table,
            stage=staging.stage_of(attempt, self._key),
            columns=[name for name in columns if name != self._sink.deleted],
            key=self._sink.key,
            order=self._sink.order,
            deleted=self._sink.deleted,
            commit_column=self._sink.commit_column,
        )
        return move, {"writers": [task["writer"] for task in written], "commit": attempt.commit}

    def _ambiguous(self, attempt: SinkAttempt, written: Sequence[Mapping[str, Any]]) -> DataError:
        move, arguments = self._staged(attempt, written)
        with translated_errors(f"commit {attempt.commit}", str(self._table)):
            row = self._session().execute(move.ambiguous(), arguments).fetchone()
        key = ", ".join(f"{name}={value!r}" for name, value in zip(self._sink.key, row or (), strict=False))
        order = (
            "rows; name the column that tells which is the last: PostgresSink(order=...)"
            if self._sink.order is None
            else f"rows with its greatest {self._sink.order}; let that column tell them apart"
        )
        times = row[-1] if row else "several"
        return RecordRefusedError(f"commit {attempt.commit} has for {key} of table {self._table} {times} {order}")

    @property
    def _counted_column(self) -> str | None:
        """The column that an audit counts rows by, which therefore has no other sink's; None when it counts none."""
        return self._sink.commit_column if self._sink.mode == "insert" else None

    def _rows_by_commit(self) -> dict[int, int] | None:
        if self._counted_column is None:
            return None
        text = sql.SQL("SELECT {0}, count(*) FROM {1} WHERE {0} IS NOT NULL GROUP BY {0}")
        statement = text.format(sql.Identifier(self._counted_column), self._table.quoted)
        return dict(self._session().execute(statement).fetchall())

    def _drop_stages(self) -> None:
        with translated_errors("removing staging tables", str(self._table)):
            still_written, anothers = staging.drop_stages(self._session(), self._key, self._run)
        if still_written:
            log.info("still written to, and dropped later: %s", ", ".join(still_written))
        if self._left.issuperset(anothers):
            return
        self._left.update(anothers)
        statement = f"DROP TABLE {', '.join(f'{staging.SCHEMA}.{name}' for name in anothers)}"
        log.warning("a driver of another role has left staging tables, which only it may drop: %s", statement)


def _is_locked(error: Exception) -> bool:
    return isinstance(error.__cause__, psycopg.errors.LockNotAvailable)
