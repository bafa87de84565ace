"""The subcommand ``exactlyonce check``."""

from __future__ import annotations

import argparse
import os

from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.checkpoint.versions import CompatibilityReport, Verdict, VersionChange
from airflow_provider_exactlyonce.cli.arguments import DECLARATION, HOME, declare, home_of
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.output import print_answer
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.storage.opening import is_there, place_of
from airflow_provider_exactlyonce.streaming import settings


def add_to(program: Command) -> None:
    """Add the command to the program."""
    command = program.add_command(
        "check",
        _check,
        summary="tell whether a new version of a job can go on from a savepoint",
        details="JOB.py is compared with the version of which the savepoint was taken, and planned as Spark would plan "
        "it. No data is read, and nothing is changed.",
        example="dags/jobs/shop_totals.py --against 40-1f3a9c2e-77ab01c2",
        exit_codes={0: "compatible, perhaps with notes", 64: "incompatible, or refused"},
    )
    declare(command, *DECLARATION)
    # Of an upgrade, which compares a pipeline of another name like everything else that may differ.
    command.add_argument("--if-several", help=argparse.SUPPRESS)
    command.add_argument("--against", required=True, metavar="SAVEPOINT", help="a savepoint's id, or its directory")
    declare(command, "--conf", *HOME)


def _check(given: argparse.Namespace) -> int:
    from airflow_provider_exactlyonce.streaming.job import loader
    from airflow_provider_exactlyonce.streaming.job.compatibility_check import check_compatibility
    from airflow_provider_exactlyonce.streaming.spark.session import planning_session

    conf = settings.pairs(given.conf)
    job = loader.load(given.job, given.pipeline, if_several=given.if_several)
    store, name = _find(given, job.name)
    savepoint = store.get(name)
    with planning_session(conf) as spark:
        report = check_compatibility(job, savepoint, store.checkpoint(name).path, spark, conf)
    body = {
        "pipeline": job.name,
        "job": given.job,
        "version": job.version,
        "job_hash": job.job_hash,
        "savepoint": savepoint.id,
        "sources": {str(source.topics): source.connection for source in job.sources.values()},
        **report.document(),
    }
    print_answer(given, body, f"{given.job} against {savepoint.id}: {_text(report)}")
    return RefusedError.exit_code if report.verdict is Verdict.INCOMPATIBLE else 0


def _find(given: argparse.Namespace, pipeline: str) -> tuple[Savepoints, str]:
    """Return where a savepoint is kept, and its name there."""
    directory = place_of(given.against)
    if os.sep in given.against or is_there(directory):
        return Savepoints(directory.parent), directory.name
    given.pipeline = pipeline
    return Savepoints(home_of(given).savepoints), given.against


def _text(report: CompatibilityReport) -> str:
    words = {
        Verdict.COMPATIBLE: "compatible",
        Verdict.NOTE: "compatible, with notes",
        Verdict.INCOMPATIBLE: "incompatible",
    }
    lines = [words[report.verdict]]
    for finding in report.findings:
        lines += ["", *_lines(finding)]
    if report.unchanged:
        lines += ["", f"the same in both: {', '.join(report.unchanged)}"]
    return "\n".join(lines)


def _lines(finding: VersionChange) -> list[str]:
    lines = [f"{finding.verdict.value:<12}  {finding.aspect}"]
    facts = (("old", finding.old), ("new", finding.new), ("why", finding.reason), ("way out", finding.way_out))
    return lines + [f"{'':<12}  {name:<7}  {value}" for name, value in facts if value is not None]
