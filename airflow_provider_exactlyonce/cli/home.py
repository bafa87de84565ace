"""The subcommand ``exactlyonce home``."""

from __future__ import annotations

import argparse

from airflow_provider_exactlyonce.checkpoint.home_copy import copy_home
from airflow_provider_exactlyonce.cli.arguments import CLUSTER, declare
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.output import print_answer
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.text_tables import pairs


def add_to(program: Command) -> None:
    """Add the command to the program."""
    group = program.add_command(
        "home",
        summary="move the home of a pipeline to another file system",
        example="copy /data/shop-totals s3://my-bucket/pipelines/shop-totals",
    )
    copy = group.add_command(
        "copy",
        _copy,
        summary="copy the home of a stopped pipeline, compare the copy, and seal the old home",
        details="From then on the pipeline is started with the new home, and goes on where it was; the old one is "
        "refused, and names the new one. A call that was killed is repeated.",
        example="/data/shop-totals s3://my-bucket/pipelines/shop-totals",
        exit_codes={0: "moved, now or by an earlier call", 65: "the pipeline, or a backfill of it, runs"},
    )
    copy.add_argument("source", metavar="SRC", help="the home, a directory or a URL such as s3://BUCKET/DIRECTORY")
    copy.add_argument("target", metavar="DST", help="where it shall be, a directory that is empty or is not there")
    declare(copy, *CLUSTER)


def _copy(given: argparse.Namespace) -> None:
    source, target = Home(given.source), Home(given.target)
    result = copy_home(source, target, reach.reached(given.bootstrap_servers))
    facts = {
        "pipeline": result.pipeline,
        "from": str(source),
        "to": str(target),
        "changed": result.changed,
        "last_run": result.run,
        "files": result.files,
        "bytes": result.size,
        "copied_files": result.copied,
    }
    text = f"{source} was moved to {target} already: nothing to do"
    print_answer(given, facts, pairs(facts) if result.changed else text)
