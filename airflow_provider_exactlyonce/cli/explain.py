"""The subcommand ``exactlyonce explain``."""

from __future__ import annotations

import argparse

from airflow_provider_exactlyonce.cli.arguments import DECLARATION, declare
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.output import print_answer
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming import settings


def add_to(program: Command) -> None:
    """Add the command to the program."""
    command = program.add_command(
        "explain",
        _explain,
        summary="tell what a job can guarantee, link by link",
        details="JOB.py is planned as Spark would plan it. The answer has what each source, the engine and each sink "
        "guarantee; the weakest of them is the pipeline's guarantee. No data is read, and nothing is changed.",
        example="dags/jobs/shop_totals.py",
        exit_codes={0: "it would start", 64: "it would be refused"},
    )
    declare(command, *DECLARATION, "--conf", "--json")


def _explain(given: argparse.Namespace) -> int:
    from airflow_provider_exactlyonce.streaming.analysis import determinism
    from airflow_provider_exactlyonce.streaming.job import guarantees, loader
    from airflow_provider_exactlyonce.streaming.spark.session import planning_session

    conf = settings.pairs(given.conf)
    job = loader.load(given.job, given.pipeline)
    with planning_session(conf) as spark:
        with loader.running(given.job, "planning it"):
            result = job.planned(spark)
            job.check(result)
        plan = guarantees.examine(job, result, determinism.find(result), conf)
    print_answer(given, plan.document, plan.text)
    return RefusedError.exit_code if plan.is_weaker and not plan.allow_weaker else 0
