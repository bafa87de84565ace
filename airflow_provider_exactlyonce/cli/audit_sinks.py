"""The subcommand ``exactlyonce audit-sinks``: every sink that is not Kafka judges itself by the pipeline's ledger."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.cli.arguments import CLUSTER, DECLARATION, declare
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.output import print_answer
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import AuditFailedError, RefusedError
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.ledger.home import never_started

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.streaming.job.definition import PipelineDefinition

_SHOWN: Final = 100


def add_to(program: Command) -> None:
    """Add the command to the program."""
    command = program.add_command(
        "audit-sinks",
        _audit,
        summary="check that the sinks that are not Kafka have what the pipeline's ledger says",
        details="Each such sink of JOB.py compares itself with the ledger. Nothing is written, and the pipeline may "
        "run meanwhile.",
        example="dags/jobs/shop_totals.py",
        exit_codes={0: "all sinks agree with the ledger", 69: "a sink does not"},
    )
    declare(command, *DECLARATION, *CLUSTER)
    command.add_argument(
        "--checksums",
        action="store_true",
        help="also read all rows of Delta and Iceberg tables, and verify the checksums in their files",
    )


def _findings(job: PipelineDefinition, config: Mapping[str, Any], *, verifies_checksums: bool) -> dict[str, list[str]]:
    from airflow_provider_exactlyonce.ledger.reader import LedgerReader
    from airflow_provider_exactlyonce.streaming.sinks.ledger_comparison import LedgerEntries
    from airflow_provider_exactlyonce.streaming.sinks.spi import SinkContext

    sinks = [share.sink for share in job.routes.others]
    if not sinks:
        raise RefusedError(f"pipeline {job.name} has no sink but Kafka; `exactlyonce audit {job.name}` checks that one")
    with LedgerReader(config, job.name) as reader:
        tail = reader.tail()
        if tail is None or tail.claim is None:
            raise never_started(job.name)
        context = SinkContext(
            pipeline=job.name, home=Home(tail.claim.home_path).path, verifies_checksums=verifies_checksums
        )
        findings: dict[str, list[str]] = {}
        for sink in sinks:
            entries = LedgerEntries(reader, sink.name)
            with closing(sink.open(context)) as committer:
                findings[sink.name] = list(committer.audit(entries))
    return findings


def _audit(given: argparse.Namespace) -> None:
    from airflow_provider_exactlyonce.streaming.job import loader

    config = reach.reached(given.bootstrap_servers)
    job = loader.load(given.job, given.pipeline)
    given.pipeline = job.name
    findings = _findings(job, config, verifies_checksums=given.checksums)
    lines = []
    for sink, texts in findings.items():
        lines.append(f"sink {sink}: {f'{len(texts):,} findings' if texts else 'agrees with the ledger'}")
        lines += [f"  {text}" for text in texts[:_SHOWN]]
    print_answer(given, {"pipeline": job.name, "sinks": findings}, "\n".join(lines))
    if worst := [f"sink {sink}: {texts[0]}" for sink, texts in findings.items() if texts]:
        raise AuditFailedError(worst[0])
