"""The treatment of rows behind the watermark, and their texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce import moments
from airflow_provider_exactlyonce.exceptions import LateRowsError, RefusedError
from airflow_provider_exactlyonce.ledger.records import LateRows
from airflow_provider_exactlyonce.streaming.analysis.logical_plans import text
from airflow_provider_exactlyonce.streaming.spark.jvm import analyzed, elements, simple_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_time: Final = partial(moments.text, timespec="milliseconds")
_JOIN: Final = "Join"
#: Names of the operators of an analysed plan that have state when they are given a stream.
_STATEFUL: Final = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsInPandasWithState",
        "FlatMapGroupsWithState",
        "GlobalLimit",
        "TransformWithState",
        "TransformWithStateInPySpark",
    }
)
#: What can be declared.
LATE_ROWS: Final = ("count", "stop", "topic")


@dataclass(frozen=True, kw_only=True)
class LateRowsPolicy:
    """The treatment of rows behind the watermark. They are always counted.

    :param stops: a batch that has any is not committed, and the pipeline ends
    :param topic: where they go in the batch's transaction, None for nowhere
    """

    stops: bool = False
    topic: str | None = None

    def judge(self, late: Sequence[LateRows]) -> None:
        """Judge the late rows of a batch that is not committed yet.

        :raises LateRowsError: when the pipeline stops at late rows
        """
        if self.stops and late:
            raise LateRowsError(
                f"the batch has rows behind the watermark, which its operators would leave out: {shown(late)}. With "
                "late_rows='stop' it is not committed. Let the watermark wait longer (withWatermark), or declare "
                "late_rows='count', which leaves them out, or 'topic', which keeps them"
            )


COUNT_LATE_ROWS: Final = LateRowsPolicy()


def policy(pipeline: str, late_rows: str, late_topic: str | None, sink_topic: str | None) -> LateRowsPolicy:
    """Return the policy of a declaration.

    :param late_rows: one of :data:`LATE_ROWS`
    :param late_topic: None for ``<sink_topic>.late``
    :param sink_topic: of the Kafka sink, None without one
    :raises RefusedError: when the values do not go together
    """
    if late_rows not in LATE_ROWS:
        raise RefusedError(f"late_rows={late_rows!r} of pipeline {pipeline}: one of {', '.join(LATE_ROWS)}")
    if late_rows != "topic":
        if late_topic is not None:
            raise RefusedError(f"late_topic={late_topic!r} of pipeline {pipeline} needs late_rows='topic'")
        return LateRowsPolicy(stops=late_rows == "stop")
    topic = late_topic or (f"{sink_topic}.late" if sink_topic else None)
    if topic is None or topic == sink_topic:
        raise RefusedError(
            f"late_rows='topic' of pipeline {pipeline} needs a KafkaSink with a topic, in whose transaction they are "
            "written, and another topic for them: late_topic"
        )
    return LateRowsPolicy(topic=topic)


def check_can_be_told(result: DataFrame) -> None:
    """Check that each operator's late rows can be distinguished: no other operator with state is below it.

    :param result: the stream that goes to the sinks
    :raises RefusedError: naming the operator
    """
    _check(analyzed(result))


def _check(node: Any) -> str | None:
    """Check an operator and all below it; returns one with state, None when there is none."""
    stateful_below = [operator for child in elements(node.children()) if (operator := _check(child)) is not None]
    name = simple_name(node)
    streams = [child for child in elements(node.children()) if child.isStreaming()]
    is_join = name == _JOIN and len(streams) > 1
    if not (is_join or (name in _STATEFUL and streams)):
        return stateful_below[0] if stateful_below else None
    if is_join or stateful_below:
        reason = (
            "it joins two streams"
            if is_join
            else f"its input comes from another operator with state, {stateful_below[0]}"
        )
        raise RefusedError(
            f"late_rows='topic': the late rows of {name} can only be counted, because {reason}. Declare "
            f"late_rows='count'; the operator is {text(node)}"
        )
    return name


def shown(late: Sequence[LateRows]) -> str:
    """Return a text of the left-out rows."""
    return ", ".join(
        f"{left_out.rows:,} behind {_time(left_out.watermark)} in operator {left_out.operator} ({left_out.name})"
        for left_out in late
    )


def as_records(rows: DataFrame, late: LateRows, topic: str) -> DataFrame:
    """Return late rows as records of a topic, in the columns of the Kafka sink's records: the value is the row in JSON.

    :param rows: as the operator would have taken them
    """
    from pyspark.sql import functions as F

    from airflow_provider_exactlyonce.streaming.sinks.kafka.columns import origin_headers, with_digest

    reason = f"behind the watermark {_time(late.watermark)}"
    records = rows.select(
        F.lit(None).cast("binary").alias("key"),
        F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("value"),
        origin_headers(F.lit(f"operator {late.operator} ({late.name})"), F.lit(reason)).alias("headers"),
        F.lit(topic).alias("topic"),
    )
    return with_digest(records)
