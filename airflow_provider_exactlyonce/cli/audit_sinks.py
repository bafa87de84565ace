"""The subcommand ``exactlyonce audit-sinks``: every sink that is not Kafka judges itself by the pipeline's ledger."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.cli.arguments import add_cluster_arguments
from airflow_provider_exactlyonce.cli.output import print_answer
from airflow_provider_exactlyonce.exceptions import AuditFailedError, RefusedError
from airflow_provider_exactlyonce.kafka import config as kafka_config
from airflow_provider_exactlyonce.ledger.home import never_started

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.ledger.records import CommitRecord
    from airflow_provider_exactlyonce.streaming.job.definition import PipelineDefinition
    from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry

_SHOWN: Final = 100


def add_audit_sinks_parser(subparsers: Any) -> None:
    """Add the subcommand to the program's parser."""
    parser = subparsers.add_parser(
        "audit-sinks",
        help="check that the sinks that are not Kafka have what the pipeline's ledger says",
        description="Read a pipeline's ledger, and compare each sink of JOB.py that is not Kafka with it, by the "
        "sink's own audit. Nothing is written; the pipeline may run meanwhile.",
        epilog="exit codes: 0 all agree, 69 one does not, 64 there is nothing to judge",
    )
    parser.add_argument("job", help="the job's file, which declares the sinks")
    parser.add_argument("--pipeline", help="which pipeline of the file, if it declares several")
    add_cluster_arguments(parser)
    parser.set_defaults(func=_audit)


def audit_sinks(job: PipelineDefinition, config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what contradicts the pipeline's ledger, by sink.

    :param config: client configuration of the ledger's cluster in librdkafka's names
    :raises RefusedError: when the pipeline has no commits, or no sink but Kafka
    """
    from airflow_provider_exactlyonce.ledger.reader import LedgerReader
    from airflow_provider_exactlyonce.streaming.sinks.spi import SinkContext

    sinks = [share.sink for share in job.shares.others]
    if not sinks:
        raise RefusedError(f"pipeline {job.name} has no sink but Kafka: exactlyonce audit {job.name} judges that")
    with LedgerReader(config, job.name) as reader:
        tail = reader.tail()
        if tail is None or tail.claim is None:
            raise never_started(job.name)
        context = SinkContext(pipeline=job.name, home=Path(tail.claim.home_path))
        commits = list(reader.commits())
    found: dict[str, list[str]] = {}
    for sink in sinks:
        with closing(sink.open(context)) as committer:
            found[sink.name] = list(committer.audit(_entries(commits, sink.name)))
    return found


def _entries(commits: list[CommitRecord], sink: str) -> Iterator[SinkEntry]:
    """Yield what the pipeline's ledger has for a sink."""
    from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry

    for commit in commits:
        if (given := commit.others.get(sink)) is not None:
            yield SinkEntry(
                commit=commit.commit,
                run=commit.run,
                lineage=commit.lineage,
                batch=commit.batch,
                source=commit.source,
                rows=given.rows,
                digest=given.digest,
            )


def _audit(given: argparse.Namespace) -> int:
    from airflow_provider_exactlyonce.streaming.job import loader

    config = kafka_config.from_environment(given.bootstrap_servers)
    job = loader.load(given.job, given.pipeline)
    given.pipeline = job.name
    found = audit_sinks(job, config)
    lines = []
    for sink, texts in found.items():
        lines.append(f"sink {sink}: {f'{len(texts):,} findings' if texts else 'agrees with the ledger'}")
        lines += [f"  {text}" for text in texts[:_SHOWN]]
    print_answer(given, {"pipeline": job.name, "sinks": found}, "\n".join(lines))
    if worst := [f"sink {sink}: {texts[0]}" for sink, texts in found.items() if texts]:
        raise AuditFailedError(worst[0])
    return 0
