"""The subcommand ``exactlyonce prepare``."""

from __future__ import annotations

import argparse

from airflow_provider_exactlyonce.cli.arguments import declare
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.output import print_answer, progress
from airflow_provider_exactlyonce.jars import class_archive
from airflow_provider_exactlyonce.jars.cache import complete_spark, jar_directory, resolve


def add_to(program: Command) -> None:
    """Add the command to the program."""
    command = program.add_command(
        "prepare",
        _prepare,
        summary="fill the per-user cache, so that drivers of this machine or image start faster",
        details="It fetches the jars of Spark's Kafka connector, and puts Spark's classes into an archive from which "
        "the JVM of a driver starts. What is there already is not made again. Drivers start without it, too.",
        example="",
    )
    command.add_argument(
        "--into-spark",
        action="store_true",
        help="also put the jars of the connector and of homes in buckets among Spark's own: for an image to which "
        "nothing is shipped",
    )
    declare(command, "--json")


def _prepare(given: argparse.Namespace) -> None:
    with progress() as show:
        resolve(show)
        if given.into_spark:
            complete_spark(show)
        archive = class_archive.make(show)
    print_answer(
        given,
        {"jars": str(jar_directory()), "classes": str(archive)},
        f"jars     {jar_directory()}\nclasses  {archive}, {archive.stat().st_size / 1e6:.0f} MB",
    )
