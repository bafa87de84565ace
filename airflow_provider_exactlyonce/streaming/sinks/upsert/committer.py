"""Both halves of the idempotent sink: tasks write over rows, the driver keeps a ledger in the same database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import CommitUnknownError, FencedError, RecordRefusedError, RefusedError
from airflow_provider_exactlyonce.streaming.sinks.ledger_comparison import compare, not_as_known
from airflow_provider_exactlyonce.streaming.sinks.places import left_over
from airflow_provider_exactlyonce.streaming.sinks.spi import (
    OpenWriter,
    SinkAttempt,
    SinkCommitter,
    SinkEntry,
    SinkWriter,
)
from airflow_provider_exactlyonce.streaming.sinks.upsert import places
from airflow_provider_exactlyonce.streaming.sinks.upsert import table as upsert_table
from airflow_provider_exactlyonce.streaming.sinks.upsert.places import METADATA, NAME
from airflow_provider_exactlyonce.streaming.spark.typed_errors import marking

if TYPE_CHECKING:
    import pyarrow as pa

_LOCK_SECONDS: Final = 60

CLAIMS: Final = sa.Table(
    "exactlyonce_claims",
    METADATA,
    sa.Column("pipeline", NAME, primary_key=True),
    sa.Column("sink", NAME, primary_key=True),
    sa.Column("run", sa.BigInteger, nullable=False),
)
COMMITS: Final = sa.Table(
    "exactlyonce_commits",
    METADATA,
    sa.Column("pipeline", NAME, primary_key=True),
    sa.Column("sink", NAME, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("entry", sa.Text, nullable=False),
)


@dataclass(frozen=True)
class OpenUpsertWriter:
    """Opens the writer of a task; pickled."""

    url: str = field(repr=False)
    table: str
    key: Sequence[str]
    commit_column: str | None

    def __call__(self, attempt: SinkAttempt, task: int) -> SinkWriter:
        """Return the writer of a task."""
        return UpsertWriter(self, attempt)


class UpsertWriter(SinkWriter):
    """Writes one task's rows in one transaction; a task without rows connects to nothing."""

    def __init__(self, opened: OpenUpsertWriter, attempt: SinkAttempt) -> None:
        self._opened: Final = opened
        self._attempt: Final = attempt
        self._closing: Final = ExitStack()
        self._connection: sa.Connection | None = None
        self._statements: list[Any] = []
        self._rows = 0

    @override
    def write(self, rows: pa.RecordBatch) -> None:
        opened = self._opened
        with self._marked():
            connection = self._connection or self._start(rows.schema.names)
            parameters = upsert_table.parameters(
                self._python_rows(rows), opened.key, opened.commit_column, self._attempt.commit
            )
            if len(self._statements) > 1:  # of keys that the database takes for one, the first that is inserted stays
                parameters.reverse()
            for statement in self._statements:
                connection.execute(statement, parameters)
        self._rows += rows.num_rows

    @override
    def finish(self) -> Mapping[str, Any]:
        if self._connection is not None:
            with self._marked():
                self._connection.commit()
        return {"rows": self._rows}

    @override
    def close(self) -> None:
        self._closing.close()

    def _python_rows(self, rows: pa.RecordBatch) -> list[dict[str, Any]]:
        try:
            return list(rows.to_pylist(maps_as_pydicts="strict"))
        except OverflowError as error:
            raise RecordRefusedError(
                f"table {self._opened.table}, commit {self._attempt.commit}: a row has a date or time before the year "
                f"1 or after 9999, which Python has none of: {error}"
            ) from error

    def _start(self, columns: Sequence[str]) -> sa.Connection:
        opened = self._opened
        self._connection = self._closing.enter_context(upsert_table.connect(opened.url))
        table = upsert_table.find(self._connection, opened.table)
        all_columns = [*columns, *([opened.commit_column] if opened.commit_column else [])]
        self._statements = upsert_table.statements(
            self._connection.dialect.name, table, all_columns, opened.key, opened.commit_column
        )
        return self._connection

    @contextmanager
    def _marked(self) -> Iterator[None]:
        what = f"commit {self._attempt.commit}"
        with marking(RecordRefusedError), upsert_table.translated_errors(what, self._opened.table):
            yield


class UpsertCommitter(SinkCommitter):
    """Opens a connection for each step: nothing is held between them.

    :param sink: the sink's name
    :param opened: opens the tasks' writers; driver and tasks write to the same table
    :raises RefusedError: when the table is missing
    :raises BatchFailedError: when the database does not answer
    """

    def __init__(self, pipeline: str, sink: str, opened: OpenUpsertWriter) -> None:
        self._opened: Final = opened
        self._key: Final = {"pipeline": pipeline, "sink": sink}
        self._run = 0
        self._known_commit = 0  # the commit that the sink's ledger has last
        self._is_checked = False  # for what others have left in commit_column; that may read the whole table
        with upsert_table.connect(opened.url) as connection:
            table = upsert_table.find(connection, opened.table)
            if opened.commit_column is not None:
                places.check(connection, self._key, table, opened.commit_column)

    @property
    @override
    def place(self) -> object:
        with self._connected("asking where it writes") as connection:
            return places.identity(connection, upsert_table.find(connection, self._opened.table))

    @property
    @override
    def dataset(self) -> tuple[str, str]:
        return upsert_table.dataset(self._opened.url, self._opened.table)

    @override
    def tail(self) -> SinkEntry | None:
        with self._connected("reading the sink's ledger") as connection:
            return self._newest(connection) if sa.inspect(connection).has_table(COMMITS.name) else None

    @override
    def claim(self, run: int) -> SinkEntry | None:
        self._run = run
        with self._connected(f"claiming it for run {run}") as connection:
            places.make_tables(connection)
            claimed = self._lock(connection)
            table = upsert_table.find(connection, self._opened.table)
            is_new = places.take(connection, self._key, table, self._opened.commit_column) or not claimed
            connection.execute(CLAIMS.update().filter_by(**self._key), {"run": run})
            newest = self._newest(connection)
            if not self._is_checked:
                self._check_left_over(connection, table, newest, is_new=is_new)
            connection.commit()
            self._is_checked, self._known_commit = True, _number(newest)
            return newest

    @override
    def open_writer(self) -> OpenWriter:
        return self._opened

    @override
    def begin(self, attempt: SinkAttempt) -> None:
        """Do nothing: rows go straight to where they are read."""

    @override
    def pre_commit(self, written: Sequence[Mapping[str, Any]]) -> None:
        """Do nothing: the tasks have committed their rows before they answered."""

    @override
    def commit(self, entry: SinkEntry) -> None:
        is_sent = False
        try:
            with self._connected(f"noting commit {entry.commit}") as connection:
                self._lock(connection)
                if (newest := _number(self._newest(connection))) != self._known_commit:
                    raise not_as_known(self._key["sink"], newest, self._known_commit, entry)
                connection.execute(COMMITS.insert(), {**self._key, "number": entry.commit, "entry": entry.to_json()})
                is_sent = True
                connection.commit()
                self._known_commit = entry.commit
        except Exception as error:
            if not is_sent:
                raise
            raise CommitUnknownError(f"commit {entry.commit} of sink {self._key['sink']}: {error}") from error

    @override
    def abort(self) -> None:
        """Do nothing: the next attempt overwrites this attempt's rows."""

    @override
    def settled(self, commit: int) -> None:
        """Do nothing: nothing was staged."""

    @override
    def forget(self, before: int) -> None:
        with self._connected("forgetting old commits") as connection:
            newest = self._newest(connection)
            if newest is not None:
                statement = COMMITS.delete().filter_by(**self._key).where(COMMITS.c.number < min(before, newest.commit))
                connection.execute(statement)
                connection.commit()

    @override
    def audit(self, commits: Iterable[SinkEntry]) -> Iterable[str]:
        with self._connected("auditing") as connection:
            self._newest(connection)  # which is not another sink's
            column = self._opened.commit_column
            table = upsert_table.find(connection, self._opened.table)
            # Before the entries are: a driver may write and commit meanwhile.
            highest = 0 if column is None else places.highest(connection, table, column)
            rows = connection.execute(sa.select(COMMITS.c.entry).filter_by(**self._key)).scalars()
            entries = {entry.commit: entry for entry in map(SinkEntry.from_json, rows)}
        yield from compare(entries, commits, f"{COMMITS.name} of sink {self._key['sink']}")
        if entries and highest > max(entries) + 1:
            yield f"commit {highest}: {left_over(str(table), str(column), highest, max(entries))}"

    @override
    def close(self) -> None:
        """Do nothing: no connection is held."""

    @contextmanager
    def _connected(self, what: str) -> Iterator[sa.Connection]:
        with (
            upsert_table.translated_errors(what, self._opened.table),
            upsert_table.connect(self._opened.url) as connection,
        ):
            yield connection

    def _check_left_over(
        self, connection: sa.Connection, table: sa.Table, newest: SinkEntry | None, *, is_new: bool
    ) -> None:
        """Check that no row has a commit that is neither made nor under way: it would be replaced by none before that.

        :param is_new: nothing of this sink can be in the column
        :raises RefusedError: when one has
        """
        column = self._opened.commit_column
        # A sink that joins a pipeline begins at the pipeline's next commit, whose rows a run may have left.
        if column is None or (newest is None and not is_new):
            return
        newest_commit = newest.commit if newest else 0
        if (highest := places.highest(connection, table, column)) > newest_commit + 1:
            raise RefusedError(left_over(str(table), column, highest, newest_commit))

    def _lock(self, connection: sa.Connection) -> int:
        """Lock the claim until the transaction's end, with an update that changes nothing.

        :return: the run that has it, 0 for none
        """
        if connection.dialect.name == "postgresql":  # which waits without a limit, also for a driver that is frozen
            connection.execute(sa.text(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'"))
        claim = CLAIMS.update().filter_by(**self._key).values(run=CLAIMS.c.run)
        if connection.execute(claim).rowcount == 0:
            with suppress(sa.exc.IntegrityError), connection.begin_nested():  # another may be the first
                connection.execute(CLAIMS.insert(), {**self._key, "run": 0})
            connection.execute(claim)
        row = connection.execute(sa.select(CLAIMS).filter_by(**self._key)).mappings().one()
        places.check_exact(row, self._key, CLAIMS)
        run = int(row["run"])
        if run > self._run:
            raise FencedError(
                f"run {self._run} of {self._key['pipeline']} is superseded by run {run}, which has claimed sink "
                f"{self._key['sink']}"
            )
        return run

    def _newest(self, connection: sa.Connection) -> SinkEntry | None:
        statement = sa.select(COMMITS).filter_by(**self._key).order_by(COMMITS.c.number.desc()).limit(1)
        row = connection.execute(statement).mappings().one_or_none()
        if row is None:
            return None
        places.check_exact(row, self._key, COMMITS)
        return SinkEntry.from_json(row["entry"])


def _number(entry: SinkEntry | None) -> int:
    return entry.commit if entry else 0
