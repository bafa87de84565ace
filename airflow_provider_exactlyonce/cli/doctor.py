"""The subcommand ``exactlyonce doctor``."""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING

from airflow_provider_exactlyonce.cli.arguments import PIPELINE, declare
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.output import print_answer, waiting
from airflow_provider_exactlyonce.kafka import config as kafka_config
from airflow_provider_exactlyonce.ledger.records import check_pipeline_name

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.doctor.examine import Examination


def add_to(program: Command) -> None:
    """Add the command to the program."""
    command = program.add_command(
        "doctor",
        _doctor,
        summary="say what is wrong with a pipeline and what to do, and repair what is safe to repair",
        details="It looks at the home, the checkpoint, the savepoints, the ledger, the lease, the topics and the "
        "transactions. It changes nothing without --fix, and the pipeline may run meanwhile.",
        example="shop-totals --fix",
        exit_codes={0: "nothing is wrong, or all is repaired", 1: "something is wrong"},
    )
    declare(command, *PIPELINE)
    command.add_argument(
        "--fix",
        action="store_true",
        help="repair what can be repaired without a risk for a record; files are repaired on a copy while the pipeline "
        "is stopped",
    )


def _doctor(given: argparse.Namespace) -> int:
    from airflow_provider_exactlyonce.doctor.examine import examine

    logging.getLogger("airflow_provider_exactlyonce").addHandler(logging.NullHandler())  # the findings have it all
    config = kafka_config.from_environment(given.bootstrap_servers)
    with waiting(f"Kafka at {config['bootstrap.servers']}, or of the home"):
        examination = examine(check_pipeline_name(given.pipeline), config, given.home, fix=given.fix)
    print_answer(given, examination.to_json(), _text(examination))
    return 0 if examination.is_healthy else 1


def _text(examination: Examination) -> str:
    lines = [f"repaired {name}: {repair}" for name, repair in examination.done]
    lines += [f"not repaired {name}: {reason}" for name, reason in examination.refused]
    for finding in examination.findings:
        fix = "  [--fix]" if finding.fixable else ""
        lines += [f"{finding.severity.value.upper()} {finding.name}{fix}", f"  {finding.what}", f"  -> {finding.do}"]
    if not examination.findings:
        lines.append(f"{examination.pipeline}: nothing is wrong")
    return "\n".join(lines)
