"""The arguments that several commands take, and the home that they name."""

from __future__ import annotations

import argparse

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.kafka.config import VARIABLE
from airflow_provider_exactlyonce.ledger.home import home_path


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Add how to answer."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Add which cluster is asked, and how to answer."""
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT", help=f"Kafka brokers, instead of {VARIABLE}")
    add_json_argument(parser)


def add_name_argument(parser: argparse.ArgumentParser) -> None:
    """Add which pipeline is meant."""
    parser.add_argument("pipeline", metavar="PIPELINE", help="the pipeline's name")


def add_home_arguments(parser: argparse.ArgumentParser) -> None:
    """Add where a pipeline's home is, which cluster is asked, and how to answer."""
    parser.add_argument("--home", metavar="DIR", help="the pipeline's home, if it is not where its last run started")
    add_cluster_arguments(parser)


def add_pipeline_arguments(parser: argparse.ArgumentParser) -> None:
    """Add which pipeline is meant, where its home is, which cluster is asked, and how to answer."""
    add_name_argument(parser)
    add_home_arguments(parser)


def add_job_argument(parser: argparse.ArgumentParser) -> None:
    """Add the file of a job."""
    parser.add_argument("job", metavar="JOB.py", help="the job's file")


def add_declaration_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the file of a job, and which of its pipelines is meant."""
    add_job_argument(parser)
    parser.add_argument("--pipeline", metavar="NAME", help="which pipeline of the file, if it declares several")


def add_conf_argument(parser: argparse.ArgumentParser) -> None:
    """Add settings of Spark."""
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a Spark setting; repeatable")


def add_submission_arguments(parser: argparse.ArgumentParser) -> None:
    """Add how a driver is submitted to Spark."""
    parser.add_argument("--master", default="local[*]", metavar="URL", help="Spark master (default: %(default)s)")
    add_conf_argument(parser)
    parser.add_argument(
        "--packages", metavar="NAMES", help="packages for Spark, instead of the connector that this project resolves"
    )


def add_timeout_argument(parser: argparse.ArgumentParser) -> None:
    """Add how long a driver is waited for."""
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long the driver may take (default: %(default)g)",
    )


def add_nondeterminism_argument(parser: argparse.ArgumentParser) -> None:
    """Add whether commits that are run again may give other rows."""
    parser.add_argument(
        "--accept-nondeterminism",
        action="store_true",
        help="commits that are run again may give other rows than before; the state then differs from the output",
    )


def home_of(given: argparse.Namespace) -> Home:
    """Return the pipeline's home: the one that was named, or that the ledger names."""
    if given.home:
        home = Home(given.home)
        if home.pipeline() != given.pipeline:
            owner = home.pipeline() or "no pipeline"
            raise RefusedError(f"{home.path} is the home of {owner}, not of {given.pipeline}")
        return home
    return Home(home_path(reach.reached(given.bootstrap_servers), given.pipeline))
