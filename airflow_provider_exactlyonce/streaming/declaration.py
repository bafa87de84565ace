"""How a user declares a pipeline, and runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Final, NoReturn

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.records import KAFKA, check_pipeline_name, ledger_topic
from airflow_provider_exactlyonce.ledger.retention import DEFAULT_RETENTION, LedgerRetention
from airflow_provider_exactlyonce.streaming.analysis import feedback
from airflow_provider_exactlyonce.streaming.analysis.late_rows import policy as late_policy
from airflow_provider_exactlyonce.streaming.job import job_file, process
from airflow_provider_exactlyonce.streaming.job.checkpoint_config import CheckpointConfig, CheckpointingMode
from airflow_provider_exactlyonce.streaming.job.definition import (
    DEFAULT_CHECKPOINT,
    MAX_BATCH_ATTEMPTS,
    ONE_SOURCE,
    PipelineDefinition,
)
from airflow_provider_exactlyonce.streaming.job.source import Source
from airflow_provider_exactlyonce.streaming.job.state_backend import StateBackend
from airflow_provider_exactlyonce.streaming.sinks.kafka.sink import KafkaSink
from airflow_provider_exactlyonce.streaming.sinks.places import one_place
from airflow_provider_exactlyonce.streaming.sinks.sink_routes import SinkRoutes
from airflow_provider_exactlyonce.streaming.sinks.spi import Share, Sink
from airflow_provider_exactlyonce.tables.datasets import dataset_at
from airflow_provider_exactlyonce.tables.positions import DELTA, ICEBERG, is_table, name_of, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OUTPUT_MODES: Final = ("append", "update", "complete")
#: What can be declared as a pipeline's sink.
AnySink = KafkaSink | Sink | Share

process.watch()


class Pipeline(PipelineDefinition):
    """A named stream that can be run: sources, a function of ordinary PySpark, a sink."""

    def main(self, arguments: Sequence[str] | None = None) -> NoReturn:
        """Run the pipeline as a driver and exit; ``--help`` lists the arguments.

        :param arguments: command line without the program's name, None for this process's
        """
        from airflow_provider_exactlyonce.streaming.driver.main import main

        main(self, arguments)


def pipeline(
    *,
    name: str,
    source: Source | Mapping[str, Source],
    sink: AnySink | Sequence[AnySink],
    output_mode: str = "append",
    max_batch_attempts: int | None = None,
    ledger_retention: LedgerRetention = DEFAULT_RETENTION,
    checkpoint: CheckpointConfig = DEFAULT_CHECKPOINT,
    state_backend: StateBackend | None = None,
    guarantee: str | None = None,
    allow_weaker: bool = False,
    allow_feedback: bool = False,
    late_rows: str = "count",
    late_topic: str | None = None,
) -> Callable[[Callable[..., DataFrame]], Pipeline]:
    """Declare a pipeline.

    :param name: unique per Kafka cluster; it never changes
    :param source: one source, or several by the function's keyword arguments; ``{}``, with ``allow_weaker``, for a
        function that reads streams of other kinds by itself
    :param sink: where the result goes; several sinks get the same rows, or their :class:`Share` of them
    :param output_mode: ``append``, ``update`` or ``complete``
    :param max_batch_attempts: attempts of one batch before the query fails; by default 3
    :param ledger_retention: how much of the ledger's history stays; by default 30 days and 10,000 commits at least
    :param checkpoint: how it checkpoints, in Flink's words
    :param state_backend: where its state lives; by default RocksDB
    :param guarantee: ``exactly_once``, ``at_least_once`` or ``at_most_once``; by default the first
    :param allow_weaker: run even if the weakest link can't give that
    :param allow_feedback: the sink may write to a topic that the pipeline reads, its topic for bad records too
    :param late_rows: what becomes of rows behind the watermark. ``"count"``: Spark's operators leave them out; the
        ledger, status, log and metrics say how many. ``"stop"``: a batch that has any is not committed, and the
        pipeline ends. ``"topic"``: they go to ``late_topic`` in the batch's transaction, as JSON, with the headers
        ``exactlyonce.origin`` and ``exactlyonce.reason``; refused where an operator's late rows can't be told
    :param late_topic: None for the Kafka sink's ``<topic>.late``
    :raises RefusedError: when a value can't be
    """
    check_pipeline_name(name)
    if output_mode not in OUTPUT_MODES:
        raise RefusedError(f"output_mode={output_mode!r} of pipeline {name}: one of {', '.join(OUTPUT_MODES)}")
    if max_batch_attempts is not None and max_batch_attempts < 1:
        raise RefusedError(f"max_batch_attempts={max_batch_attempts} of pipeline {name}: at least 1")
    sources = {ONE_SOURCE: source} if isinstance(source, Source) else dict(source)
    if not sources and not allow_weaker:
        raise RefusedError(
            f"pipeline {name} has no source: declare one, as KafkaSource; others give less, see allow_weaker"
        )
    attempts = checkpoint.max_batch_attempts(max_batch_attempts, MAX_BATCH_ATTEMPTS)
    promised = checkpoint.guarantee(guarantee)
    routes = _routes(name, [sink] if isinstance(sink, KafkaSink | Sink | Share) else sink)
    kafka = routes.kafka.sink if routes.kafka else None
    policy = late_policy(name, late_rows, late_topic, kafka.topic if kafka else None)
    if policy.topic is not None and promised is not CheckpointingMode.EXACTLY_ONCE:
        raise RefusedError(
            f"late_rows='topic' of pipeline {name} needs guarantee='exactly_once', not {promised.value!r}"
        )
    _check_shares(name, list(sources.values()))
    _check_offsets_group(name, kafka, sources.values())
    written = [*(kafka.topics if kafka else ()), *([policy.topic] if policy.topic is not None else ())]
    same_cluster_topics = [source.topics for source in sources.values() if source.connection is None]
    read = {topic for topic in (*written, ledger_topic(name)) if any(topic in topics for topics in same_cluster_topics)}
    feedback.check_topics(name, written, read, allowed=allow_feedback)
    _check_tables(name, routes, sources.values(), allowed=allow_feedback)
    seconds = checkpoint.transaction_timeout_seconds(
        kafka.transaction_timeout_seconds if kafka else KafkaSink.transaction_timeout_seconds,
        KafkaSink.transaction_timeout_seconds,
    )

    def declare(function: Callable[..., DataFrame]) -> Pipeline:
        return Pipeline(
            name=name,
            sources=sources,
            routes=routes,
            transaction_timeout_seconds=seconds,
            output_mode=output_mode,
            function=function,
            max_batch_attempts=attempts,
            ledger_retention=ledger_retention,
            checkpoint=checkpoint,
            state_backend=state_backend,
            guarantee=promised,
            allow_weaker=allow_weaker,
            allow_feedback=allow_feedback,
            late_rows=policy,
            job=job_file.of(function),
        )

    return declare


def _check_tables(pipeline: str, routes: SinkRoutes, sources: Iterable[Source], *, allowed: bool) -> None:
    """Check that no sink writes to a table that is read."""
    read_tables = {_place_of(name) for source in sources for name in source.topics.names if is_table(name)}
    for share in routes.others:
        facts = share.sink.facts
        places = [*facts.get("path", ()), *facts.get("table", ())]
        for place in places if facts.get("kind", ("",))[0] in (DELTA, ICEBERG) else ():
            if _place_of(name_of(facts["kind"][0], place)) in read_tables and not allowed:
                raise RefusedError(
                    f"pipeline {pipeline} would write to table {place}, and reads it: what it writes would be its next "
                    "input, for ever. Name another table; if it is meant, say so: @pipeline(allow_feedback=True)"
                )


def _place_of(table: str) -> tuple[str, ...]:
    """Return the normal form of a table's name: a path may be written as a URL, too."""
    kind, place = parse(table)
    return (kind, *dataset_at(place)) if kind == DELTA else (kind, place)


def _check_shares(pipeline: str, sources: Sequence[Source]) -> None:
    """Check that no topic is in two sources: Spark plans each up to an end of its own, and the ledger has one."""
    for one, other in combinations(sources, 2):
        first, second = one.topics, other.topics
        common = [topic for topic in (*first.names, *second.names) if topic in first and topic in second]
        if not common and first != second:
            continue
        if one.conn_id != other.conn_id:
            raise RefusedError(
                f"two sources of pipeline {pipeline} read topic {first} of two clusters, and the ledger has one range "
                "of each topic: read one of them in another pipeline"
            )
        kind = "table" if common and is_table(common[0]) else "topic"
        raise RefusedError(
            f"two sources of pipeline {pipeline} read {kind} {common[0] if common else first}: let one of them read it"
        )


def _check_offsets_group(pipeline: str, sink: KafkaSink | None, sources: Iterable[Source]) -> None:
    """Check that no source is on another cluster than the group that its offsets are committed to."""
    other_cluster_sources = [source for source in sources if source.connection is not None]
    if sink is not None and sink.offsets_group is not None and other_cluster_sources:
        raise RefusedError(
            f"offsets_group={sink.offsets_group!r} of pipeline {pipeline}: the group is on the sink's cluster, in the "
            f"batch's transaction, and {_location(other_cluster_sources[0])}. Leave it out; the ledger has the offsets"
        )


def _location(source: Source) -> str:
    if is_table(str(source.topics)):
        return f"{source.topics} is a table"
    return f"topic {source.topics} is on another one, of connection {source.conn_id}"


def _routes(pipeline: str, sinks: Sequence[AnySink]) -> SinkRoutes:
    shares = [sink if isinstance(sink, Share) else Share(sink) for sink in sinks]
    kafka = [share for share in shares if isinstance(share.sink, KafkaSink)]
    others = [share for share in shares if isinstance(share.sink, Sink)]
    if len(kafka) + len(others) < len(shares) or not shares:
        raise RefusedError(f"sink={sinks!r} of pipeline {pipeline}: a sink, or a list of sinks and shares of them")
    if len(kafka) > 1:
        raise RefusedError(
            f"pipeline {pipeline} has {len(kafka)} Kafka sinks: declare one, with a topic_column that names each row's "
            "topic; its transaction spans them all"
        )
    names = [share.sink.name for share in others]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise RefusedError(f"pipeline {pipeline} has two sinks with the name {duplicates[0]!r}: give each its own")
    if KAFKA in names:
        raise RefusedError(f"a sink of pipeline {pipeline} has the name {KAFKA!r}, the Kafka sink's: give it another")
    if "" in names:
        raise RefusedError(f"a sink of pipeline {pipeline} has no name: give it one, which never changes")
    for first, second in combinations([share.sink for share in others], 2):
        if first.exclusive_place is not None and first.exclusive_place == second.exclusive_place:
            raise RefusedError(one_place(pipeline, first.name, second.name))
    return SinkRoutes(kafka=kafka[0] if kafka else None, others=others)
