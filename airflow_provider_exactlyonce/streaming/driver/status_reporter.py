"""A driver's reports: its status document, and its last status."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from airflow_provider_exactlyonce.control import status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.status import DriverError, DriverState, Status, TableStatus
from airflow_provider_exactlyonce.exceptions import Decision, ExactlyOnceError
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition, by_partition
from airflow_provider_exactlyonce.ledger.records import CommitRecord, SourceRanges
from airflow_provider_exactlyonce.storage.opening import is_there
from airflow_provider_exactlyonce.streaming.analysis.late_rows import shown
from airflow_provider_exactlyonce.tables.positions import distance

log = logging.getLogger("exactlyonce")


class DriverReport:
    """A driver's account of itself. Written by any of its threads.

    :param home: whose status document it is
    :param token: the driver's start token
    :param pipeline: its name

    :ivar status: the last status
    :ivar tables: returns the tables as the sinks have left them, by the sinks' names; called for each status
    :ivar batch_began: seconds since the epoch when the batch that is being written began, None between two
    """

    def __init__(self, home: Home, token: str, pipeline: str) -> None:
        self.status = Status(pipeline=pipeline, token=token, state=DriverState.STARTING)
        self.tables: Callable[[], dict[str, TableStatus]] = dict
        self.batch_began: float | None = None
        self._home: Final = home
        self._lock: Final = threading.Lock()
        self._owned = False
        self._alone = False
        self._read_ranges: SourceRanges | None = None  # of the last commit, None while that is not known
        self._available: Mapping[TopicPartition, int] | None = None

    def own(self, *, alone: bool = False) -> None:
        """Write the document from now on, unless a later run does.

        :param alone: no other driver owns it, whatever the document says
        """
        self._owned, self._alone = True, alone

    def tell(self, **changes: Any) -> None:
        """Change the status, and write it."""
        with self._lock:
            now, tables = time.time(), self.tables()
            self.status = replace(self.status, updated=now, batch_began=self.batch_began, tables=tables, **changes)
            if not self._owned:
                return
            stored = None if self._alone else status.read(self._home.status)
            if stored is None or stored.token == self.status.token or stored.run < self.status.run:
                status.write(self._home.status, self.status)

    def read(self, source: SourceRanges) -> None:
        """Note the offsets that the last commit has read, for the lag."""
        self._read_ranges = source

    def available(self, offsets: Mapping[TopicPartition, int] | None) -> None:
        """Report the lag behind the offsets that can be read by now.

        :param offsets: {(topic, partition): last stable offset} of the source's partitions, None while unknown
        """
        self._available = offsets
        lag = self._lag()
        self.tell(lag=lag, **({"progressed": time.time()} if lag == 0 else {}))

    def committed(self, record: CommitRecord, seconds: float, *, before: bool) -> None:
        """Tell of a commit.

        :param seconds: how long its batch took
        :param before: an earlier run has made it; nothing was written now
        """
        self._read_ranges = record.source
        rows_per_second = record.primary_rows / seconds if seconds > 0 else 0.0
        lag = self._lag()
        own_commits = 0 if before else 1
        previous = self.status
        self.tell(
            commit=record.commit,
            batch=record.batch,
            commits_of_run=previous.commits_of_run + own_commits,
            rows=previous.rows + own_commits * record.primary_rows,
            rows_by_sink={
                name: previous.rows_by_sink.get(name, 0) + own_commits * rows
                for name, rows in record.rows_by_sink.items()
            },
            records=previous.records + own_commits * (record.records or 0),
            late_rows=previous.late_rows + own_commits * (record.late_rows or 0),
            late_total=record.late_total,
            rows_per_second=rows_per_second,
            lag=lag,
            watermark=record.watermark,
            committed=record.committed / 1000,
            progressed=time.time(),
        )
        log.info(
            "commit %d, batch %d: %s in %.2f s (%s rows/s)%s%s",
            record.commit,
            record.batch,
            _counts_text(record),
            seconds,
            f"{rows_per_second:,.0f}",
            "" if lag is None else f", lag {lag:,}",
            ", was committed before: state rebuilt, nothing written" if before else "",
        )
        if own_commits and record.late:
            log.warning("commit %d: rows that were late are left out: %s", record.commit, shown(record.late))

    def ended(self, state: DriverState) -> None:
        """Tell an end in order."""
        self.tell(state=state)
        self._write_final_status()

    def failed(self, error: Exception, meaning: ExactlyOnceError | None) -> int:
        """Tell a failure; returns the exit code.

        :param meaning: the project's error for it, None for another error
        """
        self.batch_began = None  # its attempt is aborted
        described = DriverError(
            kind=type(meaning or error).__name__,
            decision=(meaning.decision if meaning else Decision.RESTART).value,
            exit_code=meaning.exit_code if meaning else 1,
            message=str(meaning or error),
        )
        try:
            self.tell(state=DriverState.FAILED, error=described)
            self._write_final_status()
        except (OSError, ExactlyOnceError) as write_error:  # the exit code has to say it
            log.warning("the failure could not be written to %s: %s", self._home, write_error)
        return described.exit_code

    def _write_final_status(self) -> None:
        """Leave last words under our own token: the status may be, or become, another driver's."""
        if is_there(self._home.control):  # a home that was mistyped stays untouched
            status.write(self._home.final_status_path(self.status.token), self.status)

    def _lag(self) -> int | None:
        """Return how many source records, and versions of tables, are left, None while nothing is known."""
        if self._read_ranges is None or self._available is None:
            return None
        ends = {partition: end for partition, (_, end) in by_partition(self._read_ranges).items()}
        if not (ends or self._available):
            return 0  # a pattern that matches no topic yet
        if not (ends and self._available):
            return None
        return sum(distance(partition[0], end, self._available.get(partition, end)) for partition, end in ends.items())


def _counts_text(record: CommitRecord) -> str:
    """Return a text of the records that a commit has read and the rows of each sink, for a log."""
    counts = f"{record.primary_rows:,} rows"
    if len(record.rows_by_sink) > 1:
        counts = ", ".join(f"{rows:,} rows for {name}" for name, rows in record.rows_by_sink.items())
    return counts if record.records is None else f"{counts} of {record.records:,} records"
