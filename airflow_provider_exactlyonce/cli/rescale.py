"""The subcommand ``exactlyonce rescale``."""

from __future__ import annotations

import argparse
from typing import Any

from airflow_provider_exactlyonce.cli.arguments import PIPELINE, declare, home_of
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.output import print_answer, tell
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.streaming.replay.rescale import Rescaled, rescale
from airflow_provider_exactlyonce.text_tables import pairs


def add_to(program: Command) -> None:
    """Add the command to the program."""
    command = program.add_command(
        "rescale",
        _rescale,
        summary="give a pipeline's state another number of partitions",
        details="It makes a new lineage of the state, and compares it with the old one. The next start of the "
        "pipeline's driver runs it. The pipeline must be stopped. The state is read and written here, with Spark.",
        example="shop-totals --state-partitions 8",
        exit_codes={0: "rescaled, or there are as many partitions already", 65: "the pipeline runs"},
    )
    declare(command, *PIPELINE)
    command.add_argument(
        "--state-partitions", type=int, required=True, metavar="N", help="how many partitions the state shall have"
    )


def _rescale(given: argparse.Namespace) -> None:
    config = reach.reached(given.bootstrap_servers)
    rescaled = rescale(home_of(given), given.pipeline, config, given.state_partitions, tell=tell)
    facts = _facts(rescaled, given.pipeline)
    text = f"{given.pipeline} has {rescaled.partitions} state partitions already: nothing to do"
    print_answer(given, facts, pairs(facts) if facts["changed"] else text)


def _facts(rescaled: Rescaled, pipeline: str) -> dict[str, Any]:
    span = rescaled.span
    return {
        "pipeline": pipeline,
        "changed": rescaled.lineage is not None,
        "state_partitions": rescaled.partitions,
        "state_partitions_before": rescaled.before,
        "lineage": rescaled.lineage.id if rescaled.lineage else None,
        "directory": str(rescaled.directory) if rescaled.directory else None,
        "abandoned": rescaled.lineage.parent if rescaled.lineage else None,
        "commit": rescaled.commit if rescaled.lineage else None,
        "replayed_commits": [span.first, span.last] if span else None,
        "state": [dict(store) for store in rescaled.state],
        "seconds": round(rescaled.seconds, 3),
    }
