"""Walks through Spark's analysed plans."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.analysis.source_mark import topics_of_mark
from airflow_provider_exactlyonce.streaming.spark.jvm import analyzed, elements, has_python_function, simple_name, tree

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_STREAMS: Final = ("StreamingRelation", "StreamingRelationV2")
#: Names of nodes and generators that run in Python workers.
_PYTHON: Final = re.compile("Python|PySpark|InPandas|InArrow")


@dataclass(frozen=True)
class Stream:
    """A stream that a job's function reads by itself.

    :param source: the name of its format, in small letters
    :param may_lose: it has ``failOnDataLoss=false``
    :param options: its options, names in small letters
    """

    source: str
    may_lose: bool
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_kafka(self) -> bool:
        """Whether it is Spark's Kafka source."""
        return self.source.startswith("kafka")


def undeclared_streams(frame: DataFrame) -> list[Stream]:
    """Return the streams that a job reads besides those that it declares, in the plan's order.

    :param frame: the stream that goes to the sink
    """
    streams = []
    for plan in steps(analyzed(frame)):
        name = simple_name(plan)
        if name in _STREAMS:
            options = _options(plan, name)
            may_lose = options.get("failondataloss", "").lower() == "false"
            streams.append(Stream(str(plan.sourceName()).lower(), may_lose, options))
    return streams


def _options(plan: Any, name: str) -> dict[str, str]:
    if name == "StreamingRelation":
        pairs = elements(plan.dataSource().options().toSeq())
        return {str(pair._1()).lower(): str(pair._2()) for pair in pairs}
    options = plan.extraOptions().asCaseSensitiveMap()
    return {str(option).lower(): str(options[option]) for option in options}


def check_sources(frame: DataFrame) -> None:
    """Check that a job reads nothing but Kafka.

    :param frame: the stream that goes to the sink
    :raises RefusedError: naming the stream
    """
    for stream in undeclared_streams(frame):
        if not stream.is_kafka:
            raise RefusedError(
                f"the job reads a stream of source {stream.source!r} that its declaration does not name. The ledger "
                "records what a batch has read as Kafka offsets, and only those can be replayed; declare a KafkaSource"
            )


def check_read_once(result: DataFrame) -> None:
    """Check that Spark reads each declared source once: it plans each reading up to an end of its own.

    :param result: the user's function's result for the sources' streams
    :raises RefusedError: naming the topics of one that it reads twice
    """
    streams_by_topics: dict[str, Any] = {}
    for node in tree(analyzed(result)):
        topics = topics_of_mark(node, simple_name(node))
        if topics is None:
            continue
        for stream in tree(node):
            if simple_name(stream) in _STREAMS and streams_by_topics.setdefault(topics, stream) != stream:
                raise RefusedError(
                    f"the function joins the stream of {topics} with itself, and Spark would read it twice, each time "
                    "up to an end of its own; rename the columns of one side before the join, as in "
                    "other = stream.withColumnsRenamed({name: f'other_{name}' for name in stream.columns})"
                )


def steps(plan: Any) -> Iterator[Any]:
    """Yield a plan and all plans below it, without those inside declared sources, which are known."""
    yield plan
    if topics_of_mark(plan, simple_name(plan)) is None:
        for child in elements(plan.children()):
            yield from steps(child)


def runs_python(frame: DataFrame) -> bool:
    """Whether any step of a query, its sources' included, runs in a Python worker."""
    plan = analyzed(frame)
    names = (name for node in tree(plan) for name in _names(node))
    return has_python_function(frame.sparkSession, plan) or any(map(_PYTHON.search, names))


def _names(plan: Any) -> Iterator[str]:
    name = simple_name(plan)
    yield name
    if name == "Generate":
        yield simple_name(plan.generator())


def text(node: Any) -> str:
    """Return the beginning of a node's own description."""
    return str(node.toString()).strip().splitlines()[0][:120]
