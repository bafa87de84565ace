"""The subcommand ``exactlyonce stop``."""

from __future__ import annotations

import argparse
from typing import Any

from airflow_provider_exactlyonce.checkpoint.stop import stop
from airflow_provider_exactlyonce.cli.arguments import add_pipeline_arguments, home_of
from airflow_provider_exactlyonce.cli.output import print_answer
from airflow_provider_exactlyonce.control.state import state_of
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.text_tables import pairs


def add_stop_parser(subparsers: Any) -> None:
    """Add the subcommand to the program's parser."""
    parser = subparsers.add_parser(
        "stop",
        help="stop a pipeline's driver before its next batch",
        description="Ask a pipeline's driver to end when its batch is committed, and wait for it. A supervisor does "
        "not start it again.",
        epilog="exit codes: 0 stopped, also when none ran; 1 not in time (the request stays), or the savepoint failed; "
        "64 refused",
    )
    add_pipeline_arguments(parser)
    parser.add_argument(
        "--savepoint", nargs="?", const=True, default=False, metavar="LABEL", help="save after the last batch"
    )
    parser.add_argument(
        "--timeout", type=float, default=300.0, metavar="SECONDS", help="how long the driver may take (default: 300)"
    )
    parser.set_defaults(func=_stop)


def _stop(given: argparse.Namespace) -> int:
    home = home_of(given)
    config = reach.reached(given.bootstrap_servers)
    stopped = stop(home, given.pipeline, config, savepoint=given.savepoint, timeout_seconds=given.timeout)
    state, last = state_of(home)
    facts = {
        "pipeline": given.pipeline,
        "stopped": stopped.token is not None,
        "state": state.value,
        "run": last.run if last else None,
        "commit": last.commit if last else None,
        "savepoint": stopped.savepoint.id if stopped.savepoint else None,
    }
    print_answer(given, facts, pairs(facts))
    return 0
