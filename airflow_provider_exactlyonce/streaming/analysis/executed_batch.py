"""The one adapter for Spark's counts of the batch that it has just run: late rows by operator, and records read.

Spark reports both after a batch; a commit needs them before. They are read from the metrics of the batch's own
executed plan, which are complete when its job has ended. Metrics of a plan that is run again go on counting, so an
attempt's count is the difference to its start. The shuffled data of an earlier attempt would be reused, and nothing
be read for it, so it is forgotten. Broadcast data is read once, before the first attempt.

An aggregation drops late rows after its first, partial step, and Spark counts the dropped groups instead of rows.
Where it counts any, the rows are counted too: the part of the plan below that step is run again, without the
operator.

Everything here is private to Spark 4.2. If its contract fails with another Spark, repair this module:
``tests/integration/streaming/analysis/test_executed_batch.py``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, SettingRefusedError
from airflow_provider_exactlyonce.ledger.records import LateRows
from airflow_provider_exactlyonce.streaming import settings
from airflow_provider_exactlyonce.streaming.analysis.source_mark import is_count
from airflow_provider_exactlyonce.streaming.registry.encoded_values import DECODING
from airflow_provider_exactlyonce.streaming.spark.jvm import class_of, elements, simple_name, tree
from airflow_provider_exactlyonce.streaming.spark.steering import KAFKA_STREAM
from airflow_provider_exactlyonce.tables.positions import is_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LATE: Final = "numRowsDroppedByWatermark"
_STATE: Final = "numTotalStateRows"
_READ: Final = "numOutputRows"
_RETURNED: Final = "pythonNumRowsReceived"
_SCAN: Final = "MicroBatchScanExec"
_ADAPTIVE: Final = "AdaptiveSparkPlanExec"
_SHUFFLE: Final = "ShuffleExchangeExec"
_BROADCAST: Final = "BroadcastExchangeExec"
_MAP: Final = "MapInArrowExec"
_COUNT: Final = "CollectMetricsExec"
_AGGREGATE: Final = "AggregateExec"
_JOIN: Final = "StreamingSymmetricHashJoinExec"
#: What stands over one other plan and counts nothing; each question about a node takes time from every batch.
_PLAIN: Final = frozenset(
    {"FilterExec", "GenerateExec", "InputAdapter", "ProjectExec", "SerializeFromObjectExec", "WholeStageCodegenExec"}
)
#: What Spark puts between an operator with state and the plan that it was written over.
_BETWEEN: Final = frozenset(
    {
        "InputAdapter",
        "MergingSessionsExec",
        "SessionWindowStateStoreRestoreExec",
        _SHUFFLE,
        "SortExec",
        "StateStoreRestoreExec",
        "UpdatingSessionsExec",
        "WholeStageCodegenExec",
    }
)


@dataclass(frozen=True, kw_only=True)
class BatchCounts:
    """The counts of records that one attempt of a batch has read and left out.

    :param records: source records that were read, bad ones included; each once, whatever reads it again.
        None where streams share a topic and read others, too: then it is not known which records are the same
    :param late: of every operator that has left out rows behind its watermark
    :param undecoded: records that the decoding of sources has left out, None where nothing is decoded in workers
    :param fitting: records that were seen to fit the schema of each source that reads them, where others are left out;
        0 where the query may leave some unread
    """

    records: int | None
    late: Sequence[LateRows] = ()
    undecoded: int | None = None
    fitting: int = 0

    @property
    def late_rows(self) -> int:
        """Rows that all operators together have left out."""
        return sum(late.rows for late in self.late)


class ExecutedBatch:
    """The plan of the batch whose callback runs, before one attempt of it; made anew for each attempt.

    :param spark: the session that the query was started in
    :param query: the query's id
    :raises ExactlyOnceError: when no such query runs
    :raises SettingRefusedError: when Spark has run a part of it already, unseen
    """

    def __init__(self, spark: SparkSession, query: str) -> None:
        self._spark: Final = spark
        running = spark._jsparkSession.streams().get(query)
        if running is None:
            raise ExactlyOnceError(f"no query {query} runs in this session, so nothing is known of its batch")
        plan = running.streamingQuery().lastExecution().executedPlan()
        self._operators: Final[list[_Operator]] = []
        self._scans: Final[list[_Scan]] = []
        self._decoded: Final[list[_Decoded]] = []
        self._fitting: Final[list[_Fitting]] = []
        self._reads_all = True
        self._find_metrics(plan, is_read=False)

    def _find_metrics(self, node: Any, *, is_read: bool) -> None:
        """Find the metrics that count in a part of the plan.

        :param is_read: Spark has read all of it already, to broadcast it
        """
        while (name := simple_name(node)) in _PLAIN:
            node = node.child()
        metrics = node.metrics()
        if metrics.contains(_LATE):
            if metrics.contains(_STATE):
                self._operators.append(_Operator(self._spark, node))
            self._operators[-1].count_by(metrics.apply(_LATE))  # of session windows, what restores state counts
        elif name == _ADAPTIVE:
            raise SettingRefusedError(
                settings.ADAPTIVE,
                "true",
                "false",
                "Spark would run a part of a batch before its attempt begins, unseen",
            )
        elif name == _SHUFFLE:
            _forget_shuffled(self._spark, node)
        elif name == _SCAN and _is_declared(node):
            self._scans.append(_Scan(node, is_read=is_read))
        elif name == _MAP and str(node.func().name()) == DECODING:
            self._decoded.extend(_Decoded(node, scan) for scan in _scans_below(node, is_read=is_read))
        elif name == _COUNT and is_count(node):
            self._fitting.extend(_Fitting(node, scan) for scan in _scans_below(node, is_read=is_read))
        elif "Limit" in name:  # tasks may end before they have read everything
            self._reads_all = False
        for child in elements(node.children()):
            self._find_metrics(child, is_read=is_read or name == _BROADCAST)

    def counts(self) -> BatchCounts:
        """Return the attempt's counts so far; an aggregation's late rows are counted in a job."""
        records, undecoded, fitting = self._records(), self._undecoded(), self._seen_to_fit()
        dropped = [(operator, operator.dropped()) for operator in self._operators]
        late = [operator.late(rows) for operator, rows in dropped if rows]
        for scan in self._scans:
            scan.forget_further_reads()
        return BatchCounts(records=records, late=late, undecoded=undecoded, fitting=fitting)

    def _records(self) -> int | None:
        read_counts = _by_topics((scan.topics, scan.read()) for scan in self._scans)
        shared = len({topic for topics in read_counts for topic in topics}) < sum(map(len, read_counts))
        return None if shared else sum(map(max, read_counts.values()))

    def _undecoded(self) -> int | None:
        left_out = _by_topics((decoded.topics, decoded.left_out()) for decoded in self._decoded)
        return sum(max(0, *numbers) for numbers in left_out.values()) if left_out else None

    def _seen_to_fit(self) -> int:
        fitting_counts = _by_topics((fitting.topics, fitting.seen()) for fitting in self._fitting)
        scans = Counter(scan.topics for scan in self._scans)
        complete = [min(numbers) for topics, numbers in fitting_counts.items() if len(numbers) == scans[topics]]
        return sum(complete) if self._reads_all else 0

    def late_rows(self, late: LateRows) -> DataFrame:
        """Return the rows that an operator has left out, as it would have taken them.

        :param late: of :meth:`counts`
        :raises ExactlyOnceError: when they can't be distinguished from others
        """
        operator = next(operator for operator in self._operators if operator.number == late.operator)
        return operator.late_frame()


def _is_declared(node: Any) -> bool:
    """Tell whether it reads as a pipeline's sources do: from topics of Kafka, or from a table."""
    if str(node.stream().getClass().getName()) == KAFKA_STREAM:
        return True
    position = json.loads(node.end().json())
    return isinstance(position, dict) and any(map(is_table, position))


def _forget_shuffled(spark: SparkSession, node: Any) -> None:
    tracker, shuffle = spark.sparkContext._jsc.sc().env().mapOutputTracker(), node.shuffleDependency().shuffleId()
    if tracker.containsShuffle(shuffle):
        tracker.unregisterAllMapAndMergeOutput(shuffle)


class _Scan:
    """Reads a part of a Kafka stream, or of a table.

    :ivar is_read: Spark has read it already, for all attempts
    """

    def __init__(self, node: Any, *, is_read: bool) -> None:
        self.is_read: Final = is_read
        self.topics: Final = frozenset(json.loads(node.end().json()))
        self._metric: Final = node.metrics().apply(_READ)
        self._start_count: Final = 0 if is_read else int(self._metric.value())
        self._last_count = int(self._metric.value())

    def read(self) -> int:
        """Return how many records it has read since."""
        self._last_count = int(self._metric.value())
        return self._last_count - self._start_count

    def forget_further_reads(self) -> None:
        """Reset Spark's metric to the batch's own reads, without the reads of counting late rows."""
        if int(self._metric.value()) != self._last_count:
            self._metric.set(self._last_count)


class _Decoded:
    """Decodes the records of a part of a Kafka stream, in workers."""

    def __init__(self, node: Any, scan: _Scan) -> None:
        self._scan: Final = scan
        self.topics: Final = scan.topics
        self._metric: Final = node.metrics().apply(_RETURNED)
        self._start_count: Final = 0 if scan.is_read else int(self._metric.value())

    def left_out(self) -> int:
        """Return how many records it has read since, and not given out."""
        return self._scan.read() - (int(self._metric.value()) - self._start_count)


class _Fitting:
    """Counts the records of a Kafka stream that fit its schema, where the others have been left out."""

    def __init__(self, node: Any, scan: _Scan) -> None:
        self.topics: Final = scan.topics
        self._node: Final = node
        self._start_count: Final = 0 if scan.is_read else self._count()

    def seen(self) -> int:
        """Return how many have come since."""
        return self._count() - self._start_count

    def _count(self) -> int:
        return int(self._node.collectedMetrics().getLong(0))


def _scans_below(node: Any, *, is_read: bool) -> list[_Scan]:
    """Return the one scan of the source that a node belongs to, none where the batch has nothing of that source."""
    return [_Scan(scan_node, is_read=is_read) for scan_node in tree(node) if simple_name(scan_node) == _SCAN]


def _by_topics(numbers: Iterable[tuple[frozenset[str], int]]) -> dict[frozenset[str], list[int]]:
    """Return the numbers of records by their topics; a stream that the job reads in two places has two."""
    by_topics: dict[frozenset[str], list[int]] = {}
    for topics, number in numbers:
        by_topics.setdefault(topics, []).append(number)
    return by_topics


class _Operator:
    """An operator with state that leaves out rows behind its watermark.

    :ivar number: Spark's, as in the checkpoint's ``state/<number>``
    """

    def __init__(self, spark: SparkSession, node: Any) -> None:
        self._spark: Final = spark
        self._node: Final = node
        self._metrics: Final[list[tuple[Any, int]]] = []
        self.number: Final = int(node.stateInfo().get().operatorId())

    def count_by(self, metric: Any) -> None:
        """Count the left-out rows by one more metric, from its present value on."""
        self._metrics.append((metric, int(metric.value())))

    def dropped(self) -> int:
        """Return how many rows, or groups of them, it has left out since."""
        return sum(int(metric.value()) - start for metric, start in self._metrics)

    def late(self, dropped: int) -> LateRows:
        """Return the left-out rows, by Spark's count."""
        watermark = self._node.eventTimeWatermarkForLateEvents()
        job_input = self._input()
        counts_groups = job_input is not None and job_input.is_aggregated and not job_input.has_state
        return LateRows(
            operator=self.number,
            name=str(self._node.shortName()),
            rows=self._late_plan().execute().count() if counts_groups else dropped,
            watermark=int(watermark.get()) if watermark.isDefined() else 0,
        )

    def late_frame(self) -> DataFrame:
        from pyspark.sql import DataFrame

        plan = self._late_plan()
        frame = self._spark._jsparkSession.internalCreateDataFrame(plan.execute(), plan.schema(), False)
        return DataFrame(frame, self._spark)

    def _input(self) -> _Input | None:
        """Return its input, None for a join of two inputs."""
        return None if simple_name(self._node) == _JOIN else _input(self._node.child())

    def _late_plan(self) -> Any:
        """Return the plan of its input's rows that are late, by Spark's own condition."""
        job_input = self._input()
        if job_input is None or job_input.has_state:
            raise ExactlyOnceError(
                f"the late rows of operator {self.number} ({self._node.shortName()}) can only be counted"
            )
        condition = self._node.watermarkExpressionForLateEvents().get()
        return class_of(self._spark, "org.apache.spark.sql.execution.FilterExec")(condition, job_input.plan)


@dataclass(frozen=True)
class _Input:
    """The job's own input of an operator with state, below the steps that Spark adds.

    :param is_aggregated: between the two is an aggregation's partial step
    """

    plan: Any
    is_aggregated: bool

    @property
    def has_state(self) -> bool:
        """Whether there is another operator with state in it; that must not run again by itself."""
        return any(node.metrics().contains(_STATE) for node in tree(self.plan))


def _input(plan: Any) -> _Input:
    while True:
        name = simple_name(plan)
        if name.endswith(_AGGREGATE):
            is_partial = plan.requiredChildDistributionExpressions().isEmpty()
            plan = plan.child()
            if is_partial:
                return _Input(plan, is_aggregated=True)
        elif name in _BETWEEN:
            plan = plan.child()
        else:
            return _Input(plan, is_aggregated=False)
