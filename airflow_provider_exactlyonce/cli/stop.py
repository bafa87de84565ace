"""The subcommand ``exactlyonce stop``."""

from __future__ import annotations

import argparse

from airflow_provider_exactlyonce.checkpoint.stop import stop
from airflow_provider_exactlyonce.cli.arguments import PIPELINE, declare, home_of
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.output import print_answer
from airflow_provider_exactlyonce.control.pipeline_state import state_of
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.text_tables import pairs


def add_to(program: Command) -> None:
    """Add the command to the program."""
    command = program.add_command(
        "stop",
        _stop,
        summary="stop a pipeline's driver before its next batch",
        details="It waits until the driver has committed its batch and ended. A supervisor does not start it again.",
        example="shop-totals --savepoint nightly",
        exit_codes={
            0: "stopped, or no driver ran",
            1: "not stopped in time (the request stays), or the savepoint failed",
        },
    )
    declare(command, *PIPELINE)
    command.add_argument(
        "--savepoint", nargs="?", const=True, default=False, metavar="LABEL", help="take one after the last batch"
    )
    declare(command, "--timeout")


def _stop(given: argparse.Namespace) -> None:
    home = home_of(given)
    config = reach.reached(given.bootstrap_servers)
    stopped = stop(home, given.pipeline, config, savepoint=given.savepoint, timeout_seconds=given.timeout)
    state, status = state_of(home)
    facts = {
        "pipeline": given.pipeline,
        "stopped": stopped.token is not None,
        "state": state.value,
        "run": status.run if status else None,
        "commit": status.commit if status else None,
        "savepoint": stopped.savepoint.id if stopped.savepoint else None,
    }
    print_answer(given, facts, pairs(facts))
