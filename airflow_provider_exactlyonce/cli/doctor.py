"""The subcommand ``exactlyonce doctor``."""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING

from airflow_provider_exactlyonce.cli.arguments import PIPELINE, declare
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.output import print_answer
from airflow_provider_exactlyonce.kafka import config as kafka_config
from airflow_provider_exactlyonce.ledger.records import check_pipeline_name

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.doctor.examine import Examination


def add_to(program: Command) -> None:
    """Add the command to those of the program."""
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

    logging.getLogger("airflow_provider_exactlyonce").addHandler(logging.NullHandler())  # all is said in findings
    config = kafka_config.from_environment(given.bootstrap_servers)
    found = examine(check_pipeline_name(given.pipeline), config, given.home, fix=given.fix)
    print_answer(given, found.to_json(), _told(found))
    return 0 if found.is_healthy else 1


def _told(found: Examination) -> str:
    """Return the examination for people."""
    lines = [f"repaired {name}: {done}" for name, done in found.done]
    lines += [f"not repaired {name}: {why}" for name, why in found.refused]
    for one in found.findings:
        fix = "  [--fix]" if one.fixable else ""
        lines += [f"{one.severity.value.upper()} {one.name}{fix}", f"  {one.what}", f"  -> {one.do}"]
    if not found.findings:
        lines.append(f"{found.pipeline}: nothing is wrong")
    return "\n".join(lines)
