"""Walks through Spark's analysed plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_provider_exactlyonce.exceptions import RefusedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check_sources(frame: DataFrame) -> None:
    """Check that a job reads no stream but those that it declares.

    :param frame: the stream that goes to the sink
    :raises RefusedError: naming the stream
    """
    for plan in tree(frame._jdf.queryExecution().analyzed()):
        if plan.getClass().getSimpleName() in ("StreamingRelation", "StreamingRelationV2"):
            name = str(plan.sourceName())
            if not name.lower().startswith("kafka"):
                raise RefusedError(
                    f"the job reads a stream of source {name!r} that its declaration does not name. The ledger records "
                    "what a batch has read as Kafka offsets, and only those can be replayed; declare a KafkaSource"
                )


def tree(node: Any) -> Iterator[Any]:
    """Yield a plan or an expression and all below it."""
    yield node
    for child in elements(node.children()):
        yield from tree(child)


def elements(sequence: Any) -> Iterator[Any]:
    """Yield what a Scala sequence holds."""
    for index in range(sequence.size()):
        yield sequence.apply(index)


def text(node: Any) -> str:
    """Return the beginning of a node's own description."""
    return str(node.toString()).strip().splitlines()[0][:120]
