"""The subcommand ``exactlyonce explain``."""

from __future__ import annotations

import argparse
from typing import Any

from airflow_provider_exactlyonce.cli.output import print_answer
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming import settings


def add_explain_parser(subparsers: Any) -> None:
    """Add the subcommand to the program's parser."""
    parser = subparsers.add_parser(
        "explain",
        help="tell what a job can guarantee, link by link",
        description="Plan JOB.py as Spark would, and tell what each source, the engine and each sink give; the weakest "
        "link's guarantee is the pipeline's. No data is read, and nothing is changed.",
        epilog="exit codes: 0 it would start, 64 it would be refused",
    )
    parser.add_argument("job", help="the job's file")
    parser.add_argument("--pipeline", help="which pipeline of the file, if it declares several")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a Spark setting; repeatable")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(func=_explain)


def _explain(given: argparse.Namespace) -> int:
    from airflow_provider_exactlyonce.streaming.analysis import determinism
    from airflow_provider_exactlyonce.streaming.job import guarantees, loader
    from airflow_provider_exactlyonce.streaming.spark.session import planning_session

    asked = settings.pairs(given.conf)
    job = loader.load(given.job, given.pipeline)
    spark = planning_session(asked)
    try:
        with loader.blamed(given.job, "planning it"):
            result = job.planned(spark)
            job.check(result)
        plan = guarantees.examine(job, result, determinism.find(result), asked)
    finally:
        spark.stop()
    print_answer(given, plan.document, plan.text)
    return RefusedError.exit_code if plan.is_weaker and not plan.allow_weaker else 0
