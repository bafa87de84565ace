"""The one adapter for a rescale inside Spark: redistributes state to another number of partitions.

Both parts are private to Spark 4.2: the call that does it, and the reader's option that shows a store's rows as bytes,
which that call reads with itself. ``tests/integration/streaming/spark/test_repartition.py`` is their contract: if it
fails with another Spark, repair this module. Until then a rescale is refused, and nothing is changed by it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.checkpoint.state import StatefulOperator
from airflow_provider_exactlyonce.checkpoint.state_reader import STATE_FORMAT_VERSION, cause
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.storage.opening import hadoop_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: {(operator, store, column family): (rows, sum of their hashes)}
Sums = dict[tuple[int, str, str], tuple[int, int]]

_AS_BYTES: Final = "_readAllColumnFamilies"
_TELL_SECONDS: Final = 5.0


class Repartition:
    """Reads and repartitions the state of one checkpoint that is not used otherwise.

    :param conf: the settings that are fixed for the checkpoint's life
    :param state_format: Spark's checkpoint format of the state, 1 or 2
    :param tell: called with messages on the progress, now and then
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Path,
        conf: Mapping[str, str],
        *,
        state_format: int,
        tell: Callable[[str], None],
    ) -> None:
        self._session: Final = spark.newSession()
        self._checkpoint: Final = checkpoint
        self._tell: Final = tell
        for name, value in {**conf, STATE_FORMAT_VERSION: str(state_format)}.items():
            self._session.conf.set(name, value)
        _ = self._session.streams.active  # makes the endpoint that state is opened with

    def sums(self, checkpoint: Path, batch: int, operators: Sequence[StatefulOperator]) -> Sums:
        """Sum up all rows of the state after a batch: an order of rows or partitions makes no difference.

        :param checkpoint: the given one, or the repartitioned one
        :raises ExactlyOnceError: when Spark can't read a store
        """
        from pyspark.sql import functions as F

        sums: Sums = {}
        row_hash = F.xxhash64("key_bytes", "value_bytes").cast("decimal(38,0)")
        for operator in operators:
            for store in operator.stores:
                rows = self._session.read.format("statestore").option("batchId", batch).option(_AS_BYTES, "true")
                rows = rows.option("operatorId", operator.id).option("storeName", store)
                with self._reporting_progress(f"reading the state of batch {batch}, operator {operator.id}, {store}"):
                    try:
                        families = rows.load(hadoop_url(checkpoint)).groupBy("column_family_name")
                        totals = families.agg(F.count("*"), F.sum(row_hash)).collect()
                    except Exception as error:
                        raise ExactlyOnceError(
                            f"Spark can't read operator {operator.id} ({operator.name}), {store}, of batch {batch} in "
                            f"{checkpoint}: {cause(error)}"
                        ) from error
                sums |= {(operator.id, store, family): (count, int(total)) for family, count, total in totals}
        return sums

    def run(self, partitions: int) -> None:
        """Give the state another number of partitions: a further batch of the checkpoint, which no sink sees.

        :raises RefusedError: when Spark does not do it with this checkpoint
        :raises ExactlyOnceError: when it fails on the way
        """
        manager = getattr(self._session, "_streamingCheckpointManager", None)
        if manager is None:
            raise RefusedError(
                f"Spark {self._session.version} has no way to repartition state that is known here; 4.2 has"
            )
        with self._reporting_progress(f"dealing the state out to {partitions} partitions"):
            try:
                # False would take a batch that the sink has, and Spark has not, for done and read its input again.
                manager.repartition(hadoop_url(self._checkpoint), partitions, enforce_exactly_once_sink=True)
            except Exception as error:
                message = f"Spark can't repartition this state: {cause(error)}"
                kind = RefusedError if "[STATE_REPARTITION_" in message else ExactlyOnceError
                raise kind(message) from error

    @contextmanager
    def _reporting_progress(self, step: str) -> Iterator[None]:
        """Report the step that begins, and then the progress of Spark's tasks."""
        self._tell(step)
        ended, began = threading.Event(), time.monotonic()

        def tell() -> None:
            tracker = self._session.sparkContext.statusTracker()
            while not ended.wait(_TELL_SECONDS):
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                completed = sum(stage.numCompletedTasks for stage in stages if stage)
                tasks = sum(stage.numTasks for stage in stages if stage)
                self._tell(f"{step}: {completed} of {tasks} tasks, {time.monotonic() - began:.0f} s")

        reporter = threading.Thread(target=tell, name="progress", daemon=True)
        reporter.start()
        try:
            yield
        finally:
            ended.set()
            reporter.join()
