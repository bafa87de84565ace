"""The contract of a sink that is not Kafka: two-phase commit with a ledger of its own.

The pipeline's ledger is in Kafka. Every other sink keeps a *sink ledger* where its rows are, so that a batch's rows and
their entry become visible together. In each batch all sinks commit in the order in which they are declared, and the
pipeline's ledger commits last: every sink has its commits, and a wait for it is a wait for the slowest sink. After a
crash a sink may be one commit ahead of it; the batch is then run again and written only into the sinks that lack it.

Steps of a batch, in the words of two-phase commit: :meth:`SinkCommitter.begin`, :meth:`SinkWriter.write` in the tasks,
:meth:`SinkCommitter.pre_commit`, :meth:`SinkCommitter.commit` or :meth:`SinkCommitter.abort`; and
:meth:`SinkCommitter.claim`, which recovers.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.ledger.records import CommitRecord, SourceRanges

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: How a sink's writes are made exact, in the literature's words. A write-ahead log is exact if its target can be asked
#: for what it has, and delivers at least once otherwise. Idempotent writes are exact if they are fenced: one that comes
#: late, out of an attempt that was given up, must not undo a newer one. The commit's number is the fencing token.
TWO_PHASE_COMMIT: Final = "two-phase commit"
WRITE_AHEAD_LOG: Final = "write-ahead log"
WRITE_AHEAD_LOG_ASKED: Final = "write-ahead log, target asked"
IDEMPOTENT: Final = "idempotent"
IDEMPOTENT_UNFENCED: Final = "idempotent, unfenced"
NEITHER: Final = "neither"


def never() -> bool:
    """Return False: no stop was requested."""
    return False


@dataclass(frozen=True, kw_only=True)
class SinkContext:
    """Where a sink is used.

    :param pipeline: the pipeline's name
    :param home: the pipeline's home directory; what a sink keeps there goes under ``sinks/<name>``
    :param stop_requested: tells that what may last for ever should not be tried any longer
    :param verifies_checksums: an audit reads all rows where they have checksums, and verifies those
    """

    pipeline: str
    home: Path
    stop_requested: Callable[[], bool] = never
    verifies_checksums: bool = False


@dataclass(frozen=True, kw_only=True)
class SinkEntry:
    """One entry of a sink's ledger: a commit; the sink has its rows.

    :param commit: the pipeline-wide number of the commit
    :param run: the run that wrote it
    :param lineage: Spark's query id
    :param batch: Spark's batch id
    :param source: {topic: {partition: (start, end)}} that went in, end exclusive
    :param rows: rows that the sink was given
    :param digest: sum modulo 2**64 of Spark's xxhash64 over each row
    :param watermark: the batch's event-time watermark, milliseconds since the epoch; None in entries of 0.1.0
    :param batch_timestamp: Spark's batch timestamp, milliseconds since the epoch; None in entries of 0.1.0
    """

    commit: int
    run: int
    lineage: str
    batch: int
    source: SourceRanges
    rows: int
    digest: int
    watermark: int | None = None
    batch_timestamp: int | None = None

    @classmethod
    def of(cls, record: CommitRecord, sink: str) -> SinkEntry:
        """Return the entry of a sink that got rows of a commit, from the pipeline's ledger."""
        share = record.others[sink]
        return cls(
            commit=record.commit,
            run=record.run,
            lineage=record.lineage,
            batch=record.batch,
            source=record.source,
            rows=share.rows,
            digest=share.digest,
        )

    def is_same_output(self, other: SinkEntry) -> bool:
        """Tell whether both say the same of a commit, whichever run wrote it and in whichever lineage."""
        return (self.commit, self.source, self.rows, self.digest) == (
            other.commit,
            other.source,
            other.rows,
            other.digest,
        )

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps({**vars(self), "digest": f"{self.digest:016x}"}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> SinkEntry:
        """Read an entry that :meth:`to_json` of any release has written.

        :raises RefusedError: when a newer release has written it under another schema
        """
        body = json.loads(text)
        what = f"the sink's entry of commit {body.get('commit')}"
        codec.check_schema(body, what)
        return codec.load(cls, {**body, "digest": int(body["digest"], 16)}, what)


@dataclass(frozen=True, kw_only=True)
class SinkAttempt:
    """One attempt to write one batch. Its name is never used twice.

    :param name: part of the names of everything staged
    :param run: the run that attempts it
    """

    name: str
    pipeline: str
    commit: int
    run: int


class SinkWriter(ABC):
    """Stages one task's rows for one sink, in a Spark worker; no reader sees them yet."""

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Stage some rows.

        *If it raises*, the attempt is aborted. *If we die here*, the next claim removes the staged rows.

        :raises RecordRefusedError: a row that would be refused again; the text is marked, see
            :mod:`airflow_provider_exactlyonce.streaming.spark.typed_errors`
        """

    @abstractmethod
    def finish(self) -> Mapping[str, Any]:
        """Make the written rows durable; returns the staging's description for the driver, as JSON.

        Spark may run a task twice; only rows in a description that the driver has received are committed.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the task's resources; called once, also after a failure."""


#: Opens the writer of a task: the attempt, the task's number. It is pickled and sent to the executors.
OpenWriter = Callable[[SinkAttempt, int], SinkWriter]


@dataclass(frozen=True, kw_only=True)
class WrittenTable:
    """A table as a sink has left it, for lineage.

    :param commit: the sink's newest, 0 when there is none
    :param version: of the table, which that commit has made; None when it is not known
    :param storage: the table's format, as OpenLineage names it
    :param columns: names of the rows' columns, and their types in Spark's words
    """

    commit: int
    version: str | None
    storage: str
    columns: tuple[tuple[str, str], ...]


class SinkCommitter(ABC):
    """The driver's half of one sink of a running query. Called from one thread."""

    #: The table as the sink has left it, where its commits are versions of one; None before the claim. Read by others.
    written_table: WrittenTable | None = None

    @abstractmethod
    def tail(self) -> SinkEntry | None:
        """Return the newest entry of the sink's ledger, None when it has none. Without side effects.

        :raises RefusedError: when the sink can't be used; the message names what and the way out
        :raises BatchFailedError: when it does not answer
        """

    def expect_columns(self, columns: StructType) -> None:  # noqa: B027 - optional: rows have them, too
        """Receive the columns of the rows to write; called after the sink is opened and before it is claimed.

        Not called for a sink that is only read.
        """

    @abstractmethod
    def claim(self, run: int) -> SinkEntry | None:
        """Fence every lower run, remove what its attempts have staged, and return the newest entry.

        Called at the start of a run, and again under the same number when the outcome of a commit is unknown: the
        entry is definite, no earlier commit can take place any more. Idempotent.

        :raises FencedError: when a higher run has claimed the sink
        :raises BatchFailedError: when it does not answer
        """

    @abstractmethod
    def open_writer(self) -> OpenWriter:
        """Return a function that opens a task's writer. Called once, before the query starts."""

    @abstractmethod
    def begin(self, attempt: SinkAttempt) -> None:
        """Prepare an attempt's staging.

        :raises BatchFailedError: the batch can be attempted again
        """

    @abstractmethod
    def pre_commit(self, written: Sequence[Mapping[str, Any]]) -> None:
        """Check that everything is staged and durable, so that only the decision is left.

        :param written: the results of :meth:`SinkWriter.finish`, task by task
        :raises BatchFailedError: abort next
        :raises DataError: it would fail again
        """

    @abstractmethod
    def commit(self, entry: SinkEntry) -> None:
        """Make the rows and the entry visible together, if this run still holds the claim.

        :raises FencedError: when a higher run has claimed the sink
        :raises BatchFailedError: nothing was committed
        :raises CommitUnknownError: the outcome is unknown; claim next. Or the sink's newest commit is not the last that
            was claimed or committed: another driver was given the same run number, or the sink was set back
        """

    @abstractmethod
    def abort(self) -> None:
        """End the attempt, if one is open: none of its rows is ever visible. Never called after its commit."""

    @abstractmethod
    def settled(self, commit: int) -> None:
        """Learn that the pipeline's ledger has this commit and all before: no batch up to it is attempted again.

        Called after each commit, and after the claim of a run with the ledger's newest commit.

        :raises BatchFailedError: the work can wait for the next commit; logged, not fatal
        """

    def forget(self, before: int) -> None:  # noqa: B027 - optional: a sink may keep all
        """Learn that the pipeline's ledger has no commit before this one any more: older entries may be deleted.

        The newest entry stays, whatever its number. Called at the start of a run, and whenever the ledger has
        forgotten a hundred more.

        :raises BatchFailedError: as :meth:`settled`
        """

    @abstractmethod
    def audit(self, commits: Iterable[SinkEntry]) -> Iterable[str]:
        """Compare the sink with the commits that the pipeline's ledger has for it, in order.

        The pipeline may run. The ledger is read when the commits are iterated, so read the sink's entries before, see
        :func:`~airflow_provider_exactlyonce.streaming.sinks.ledger_comparison.compare`.

        :returns: contradictions, naming commit and place; empty when all is well
        """

    @property
    def place(self) -> object:
        """Where it writes, as the target knows it: no other sink of the pipeline may have the same. None for no such.

        Read once, after it was opened; :attr:`Sink.exclusive_place` is the same by the declaration, before that.

        :raises BatchFailedError: when the target does not answer
        """
        return None

    @property
    def dataset(self) -> tuple[str, str] | None:
        """Where its rows are: a dataset's namespace and name, as OpenLineage's naming has them. None for no such.

        Asked while a batch is attempted, so without a request to the target. It has no secret: the ledger keeps it.
        """
        return None

    @property
    def undelivered(self) -> int:
        """How many settled commits its readers do not see yet; asked from another thread. Most sinks have none."""
        return 0

    @abstractmethod
    def close(self) -> None:
        """Release connections."""


@dataclass(frozen=True, kw_only=True)
class Sink(ABC):
    """The declaration of a sink. A user's own sink is a subclass of it; it is frozen, and pickled with the job.

    :param name: unique among the pipeline's sinks; it never changes
    """

    name: str

    @property
    @abstractmethod
    def guarantee(self) -> str:
        """How its writes are made exact, a constant of this module; it decides what the pipeline can guarantee."""

    @property
    @abstractmethod
    def facts(self) -> Mapping[str, tuple[str, ...]]:
        """The properties that readers notice, and a new version of the job may change."""

    @property
    def exclusive_place(self) -> object:
        """The target that no other sink of the pipeline may write to, None for no such target; never shown."""
        return None

    @abstractmethod
    def check_columns(self, columns: StructType) -> None:
        """Check the columns of the rows that it will get, before anything starts.

        :raises RefusedError: naming the column, its type and what is accepted
        """

    @abstractmethod
    def open(self, context: SinkContext) -> SinkCommitter:
        """Connect; nothing is changed yet.

        :raises RefusedError: when that is impossible, naming what and the way out
        """


@dataclass(frozen=True)
class Share:
    """Which rows of the result a sink gets, when the result is a tagged union.

    :param sink: the sink
    :param where: a condition in Spark SQL over the result's columns, None for all rows
    :param select: what its rows are made of, in Spark SQL: ``("payment.*",)`` for the fields of a struct
    """

    sink: Any = field()
    where: str | None = None
    select: tuple[str, ...] = ("*",)
