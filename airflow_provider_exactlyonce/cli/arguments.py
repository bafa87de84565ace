"""The arguments that several subcommands take, and the home that they name."""

from __future__ import annotations

import argparse

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.kafka.config import VARIABLE
from airflow_provider_exactlyonce.ledger.home import home_path


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Add which cluster is asked, and how to answer."""
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT", help=f"Kafka brokers, instead of {VARIABLE}")
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_submission_arguments(parser: argparse.ArgumentParser) -> None:
    """Add how a driver is submitted to Spark."""
    parser.add_argument("--master", default="local[*]", help="Spark master (default: %(default)s)")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a Spark setting; repeatable")
    parser.add_argument("--packages", help="packages for Spark, instead of the connector that this project resolves")


def add_pipeline_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what every subcommand on a pipeline's home is told: which pipeline, where it is, and how to answer."""
    parser.add_argument("pipeline", help="the pipeline's name")
    add_home_arguments(parser)


def add_home_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the same without the pipeline's name."""
    parser.add_argument("--home", help="the pipeline's home, if it is not where its last run started")
    add_cluster_arguments(parser)


def home_of(given: argparse.Namespace) -> Home:
    """Return the pipeline's home: the one that was named, or that the ledger names."""
    if given.home:
        home = Home(given.home)
        if home.pipeline() != given.pipeline:
            owner = home.pipeline() or "no pipeline"
            raise RefusedError(f"{home.path} is the home of {owner}, not of {given.pipeline}")
        return home
    return Home(home_path(reach.reached(given.bootstrap_servers), given.pipeline))
