"""How many rows Spark hands to a Python worker at a time.

Under a limit in bytes Spark sums up the columns of an Arrow batch before each of its rows, which for small records is a
sixth of what their way to Python costs the JVM. So once a query's rows have shown how large they are, they are counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider_exactlyonce.streaming.settings import ARROW_BYTES, DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

ARROW_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
UNLIMITED_BYTES: Final = str(2**31 - 1)  # Spark's word for it: then it does not look

_WANTED_BYTES: Final = 2 << 20  # stays in a processor's cache on its way
_TOLERATED_BYTES: Final = 64 << 20  # Spark's own limit


class BatchStats(NamedTuple):
    """The Arrow batches that a task got from Spark.

    :param largest: bytes of the largest of them
    """

    rows: int = 0
    bytes: int = 0
    largest: int = 0


class MeasuredBatches:
    """Measures Arrow batches while they are iterated.

    :param batches: as they come from Spark
    """

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches: Final = batches
        self.drawn = BatchStats()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            rows, total, largest = self.drawn
            size = batch.nbytes
            self.drawn = BatchStats(rows + batch.num_rows, total + size, max(largest, size))
            yield batch


class BatchSizer:
    """The limits of a query's Arrow batches.

    They start with the limit in bytes, and return to it for the rest of the run after a job that failed or a batch that
    became far too large: its rows differ too much for counting. The settings hold for all of a plan. So a query with
    Python functions of its own keeps the limit in bytes, since the rows of those are unknown; and so does a query with
    a limit that the user has set.
    """

    def __init__(self) -> None:
        self._counts = False
        self._rows: int | None = None
        self._by_bytes: dict[str, str] = {}
        self._set: dict[str, str] = {}

    def plan(self, session: SparkSession, *, runs_python: bool) -> None:
        """Begin with the session's settings.

        :param runs_python: the query has Python functions of its own
        """
        self._by_bytes = {name: str(session.conf.get(name)) for name in (ARROW_BYTES, ARROW_ROWS)}
        self._rows, self._set = None, self._by_bytes
        is_default = self._by_bytes[ARROW_BYTES] == DEFAULTS[ARROW_BYTES]
        self._counts = is_default and int(self._by_bytes[ARROW_ROWS]) > 0 and not runs_python

    def apply(self, session: SparkSession) -> None:
        """Set the limits for the session's next job, if they are others than before."""
        counted = {ARROW_BYTES: UNLIMITED_BYTES, ARROW_ROWS: str(self._rows)}
        limits = self._by_bytes if self._rows is None else counted
        if limits != self._set:
            for name, value in limits.items():
                session.conf.set(name, value)
            self._set = limits

    def observe(self, tasks: Iterable[BatchStats]) -> None:
        """Learn from a job; one of few bytes tells too little."""
        drawn = list(tasks)
        rows, total = sum(stats.rows for stats in drawn), sum(stats.bytes for stats in drawn)
        if any(stats.largest > _TOLERATED_BYTES for stats in drawn):
            self.reset()
        elif self._counts and total >= _WANTED_BYTES:
            fitting = max(_WANTED_BYTES * rows // total, 1)
            # A power of two is rarely another one than before.
            self._rows = min(1 << (fitting.bit_length() - 1), int(self._by_bytes[ARROW_ROWS]))

    def reset(self) -> None:
        """Limit bytes from now on."""
        self._counts, self._rows = False, None
