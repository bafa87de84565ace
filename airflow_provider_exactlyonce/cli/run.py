"""The subcommand ``exactlyonce run``."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from typing import Any

from airflow_provider_exactlyonce.cli.arguments import add_submission_arguments
from airflow_provider_exactlyonce.cli.submission import submit_command
from airflow_provider_exactlyonce.control import foreground
from airflow_provider_exactlyonce.streaming import settings
from airflow_provider_exactlyonce.streaming.driver import options


def add_run_parser(subparsers: Any) -> None:
    """Add the subcommand to the program's parser."""
    parser = subparsers.add_parser(
        "run",
        help="run a pipeline's driver here, through spark-submit",
        description="Run JOB.py through spark-submit with the settings that the protocol needs. Options may stand "
        "before and after JOB.py; what is not listed here goes to the job, and stands after it.",
        epilog="exit codes: 0 finished or stopped, 64 refused, 65 already running, 66 superseded by another run, "
        "67 a record that can't be processed, others: failed, start again",
        allow_abbrev=False,
    )
    add_submission_arguments(parser)
    of_job = parser.add_argument_group("options of the job")
    options.add_arguments(partial(_add_forwarded, of_job))
    parser.add_argument("job", metavar="JOB.py", help="the job's file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="further options")
    parser.set_defaults(func=_run, forwarded=[])


class _Forward(argparse.Action):
    """Keep an option of the job as it was given."""

    def __call__(self, _: object, namespace: argparse.Namespace, values: Any, option_string: str | None = None) -> None:
        namespace.forwarded = [*namespace.forwarded, option_string, *([values] if isinstance(values, str) else [])]


def _add_forwarded(group: Any, name: str, **about: Any) -> None:
    nargs = 0 if about.get("action") == "store_true" else None
    group.add_argument(name, action=_Forward, nargs=nargs, dest="forwarded", metavar="VALUE", help=about["help"])


def _run(given: argparse.Namespace) -> int:
    ours = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    add_submission_arguments(ours)
    given, of_job = ours.parse_known_args(given.arguments, given)
    command = submit_command(
        given.job,
        [*given.forwarded, *of_job],
        master=given.master,
        conf=settings.pairs(given.conf),
        packages=given.packages,
    )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return foreground.run(command)
