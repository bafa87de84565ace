"""The arguments that several commands take, and the home that they name."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_exactlyonce.checkpoint.home_match import find_home
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.kafka.config import VARIABLE

CLUSTER: Final = ("--bootstrap-servers", "--json")
HOME: Final = ("--home", *CLUSTER)
PIPELINE: Final = ("pipeline", *HOME)
DECLARATION: Final = ("job", "--pipeline")
SUBMISSION: Final = ("--master", "--conf", "--packages")

SHARED: Final[Mapping[str, Mapping[str, Any]]] = {
    "pipeline": {"metavar": "PIPELINE", "help": "the pipeline's name"},
    "job": {"metavar": "JOB.py", "help": "the job's file"},
    "--pipeline": {"metavar": "NAME", "help": "which pipeline of the file (default: the only one)"},
    "--home": {
        "metavar": "DIR",
        "help": "the pipeline's home, a directory or a URL of s3:, gs:, abfss: or hdfs: "
        "(default: where its last run started)",
    },
    "--bootstrap-servers": {"metavar": "HOST:PORT", "help": f"Kafka brokers, instead of {VARIABLE}"},
    "--json": {"action": "store_true", "help": "print JSON"},
    "--master": {"default": "local[*]", "metavar": "URL", "help": "Spark master (default: %(default)s)"},
    "--conf": {"action": "append", "default": [], "metavar": "NAME=VALUE", "help": "a Spark setting; repeatable"},
    "--packages": {"metavar": "NAMES", "help": "packages for Spark, instead of the connector that comes by itself"},
    "--timeout": {
        "type": float,
        "default": 300.0,
        "metavar": "SECONDS",
        "help": "how long the driver may take (default: %(default)g)",
    },
    "--accept-nondeterminism": {
        "action": "store_true",
        "help": "commits that are run again may give other rows than before; the state then differs from the output",
    },
}


def declare(parser: argparse.ArgumentParser, *names: str) -> None:
    """Let a command take arguments that others take too."""
    for name in names:
        parser.add_argument(name, **SHARED[name])


def home_of(given: argparse.Namespace) -> Home:
    """Return the pipeline's home: the one that was named, or that the ledger names."""
    if given.home:
        home = Home(given.home)
        if home.pipeline() != given.pipeline:
            owner = home.pipeline() or "no pipeline"
            raise RefusedError(f"{home} is the home of {owner}, not of {given.pipeline}")
        return home
    return find_home(reach.reached(given.bootstrap_servers), given.pipeline)
