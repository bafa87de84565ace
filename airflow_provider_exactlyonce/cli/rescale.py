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
    done = rescale(home_of(given), given.pipeline, config, given.state_partitions, tell=tell)
    facts = _facts(done, given.pipeline)
    text = f"{given.pipeline} has {done.partitions} state partitions already: nothing to do"
    print_answer(given, facts, pairs(facts) if facts["changed"] else text)


def _facts(done: Rescaled, pipeline: str) -> dict[str, Any]:
    span = done.span
    return {
        "pipeline": pipeline,
        "changed": done.lineage is not None,
        "state_partitions": done.partitions,
        "state_partitions_before": done.before,
        "lineage": done.lineage.id if done.lineage else None,
        "directory": str(done.directory) if done.directory else None,
        "abandoned": done.lineage.parent if done.lineage else None,
        "commit": done.commit if done.lineage else None,
        "replayed_commits": [span.first, span.last] if span else None,
        "state": [dict(store) for store in done.state],
        "seconds": round(done.seconds, 3),
    }
