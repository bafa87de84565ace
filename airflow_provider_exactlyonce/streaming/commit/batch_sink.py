"""The contract of a transactional sink, as the commit coordinator drives it.

Two-phase commit in the literature's words: begin, write, pre-commit, commit or abort, and recover. One batch attempt is
begun at most once and ends in exactly one of committed, aborted and unknown; only :meth:`TransactionalSink.recover`
leads on from unknown.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_provider_exactlyonce.exceptions import DivergedError
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.streaming.commit.batch import Batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class TransactionalSink(ABC):
    """One sink of a running query. Called by the coordinator only, from one thread."""

    @property
    @abstractmethod
    def time_limit_seconds(self) -> float:
        """How long an attempt may take before its transaction is aborted from outside."""

    @abstractmethod
    def prepare(self, result: DataFrame) -> DataFrame:
        """Return the stream that the query runs in the result's place: one that ends in the tasks which write.

        Called once, before the query starts, and without side effects. Its batches are what :meth:`write` and
        :meth:`rebuild` get; executed outside of these they write nothing.

        :raises RefusedError: when the result has not the columns that the sink names
        """

    @abstractmethod
    def begin(self, batch: Batch) -> None:
        """Open a batch attempt.

        Called first in each attempt, after the one before was aborted. *If it raises*, nothing is open. *If we die
        here*, the next run's start aborts an open transaction.

        :raises ProducerLostError: another driver may have taken over; recover next
        """

    @abstractmethod
    def committed(self, batch: Batch) -> CommitRecord | None:
        """Return the ledger's record of this batch, None when it has not been committed.

        Called after begin, and after recover. Does not read the ledger again: between the claim and a successful begin
        no other driver can have committed.

        :raises RefusedError: when the ledger shows that the checkpoint was rolled back
        """

    @abstractmethod
    def rebuild(self, frame: DataFrame, record: CommitRecord, diverged: Callable[[DivergedError], None]) -> None:
        """Run a committed batch's plan again, so that Spark rebuilds its state, and compare.

        Nothing is written but into a sink that was set back and lacks the commit.

        :param diverged: called when rows or digest differ; raises the error, or returns to go on
        """

    @abstractmethod
    def write(self, frame: DataFrame) -> None:
        """Run the batch's plan and write its rows into the open attempt.

        *If it raises*, any part may have been written; abort next. *If we die here*, the next run's start aborts.

        :raises BatchFailedError: the batch can be attempted again
        :raises AttemptTimedOutError: so, and it was ended for the time that it took
        :raises DataError: it would fail again
        """

    @abstractmethod
    def pre_commit(self, started_milliseconds: int) -> CommitRecord:
        """Check that everything was written and put the ledger's record into the attempt.

        :param started_milliseconds: when the attempt began, since the epoch
        :raises BatchFailedError: abort next
        """

    @abstractmethod
    def commit(self) -> None:
        """Make rows and record visible together. Never followed by abort: an uncommitted attempt was aborted.

        *If we die here*, the next run finds the batch in the ledger or attempts it again.

        :raises CommitUnknownError: recover next
        :raises TransactionGoneError: so, and if it is not committed, it took too long
        :raises ProducerLostError: it was not committed and may still be open; recover next
        """

    @abstractmethod
    def abort(self) -> None:
        """End the attempt so that none of its rows is ever visible. Never called after commit.

        :raises ProducerLostError: it may still be open; recover next
        """

    @abstractmethod
    def recover(self) -> None:
        """Determine the outcome of an attempt after its producer was lost, or with an unknown commit.

        Afterwards :meth:`committed` has the outcome.

        :raises FencedError: a higher run owns the pipeline
        """
