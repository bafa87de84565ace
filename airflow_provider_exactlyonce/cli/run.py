"""The subcommand ``exactlyonce run``."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any

from airflow_provider_exactlyonce.cli.arguments import SUBMISSION, declare
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.submission import submit_command
from airflow_provider_exactlyonce.control import processes
from airflow_provider_exactlyonce.jars import class_archive
from airflow_provider_exactlyonce.jars.spark import python_environment
from airflow_provider_exactlyonce.streaming import settings
from airflow_provider_exactlyonce.streaming.driver import options


def add_to(program: Command) -> None:
    """Add the command to the program."""
    command = program.add_command(
        "run",
        _run,
        summary="run a pipeline's driver here, through spark-submit",
        details="The settings that the protocol needs are added. Options may stand before and after JOB.py. An option "
        "of the job itself stands after it.",
        example="dags/jobs/shop_totals.py --home .exactlyonce/home --until available",
        exit_codes=options.EXIT_CODES,
        allow_abbrev=False,
    )
    declare(command, *SUBMISSION)
    job_options = command.add_argument_group("options of the job")
    options.add_arguments(partial(_add_forwarded, job_options))
    declare(command, "job")
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="further options")
    command.set_defaults(forwarded=[])


class _Forward(argparse.Action):
    """Keep an option of the job as it was given."""

    def __call__(self, _: object, namespace: argparse.Namespace, values: Any, option_string: str | None = None) -> None:
        namespace.forwarded = [*namespace.forwarded, option_string, *([values] if isinstance(values, str) else [])]


def _add_forwarded(group: Any, name: str, **about: Any) -> None:
    nargs = 0 if about.get("action") == "store_true" else None
    metavar = about.get("metavar", "VALUE")
    group.add_argument(name, action=_Forward, nargs=nargs, dest="forwarded", metavar=metavar, help=about["help"])


def _run(given: argparse.Namespace) -> int:
    submission_parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    declare(submission_parser, *SUBMISSION)
    given, job_arguments = submission_parser.parse_known_args(given.arguments, given)
    conf = settings.pairs(given.conf)
    command = submit_command(
        given.job, [*given.forwarded, *job_arguments], master=given.master, conf=conf, packages=given.packages
    )
    for name, value in python_environment().items():
        os.environ.setdefault(name, value)
    os.environ.update(class_archive.environment(os.environ, conf))
    return processes.run_in_foreground(command)
