"""The arguments of every subcommand that asks a cluster."""

from __future__ import annotations

import argparse

from airflow_provider_exactlyonce.kafka.config import VARIABLE


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Add which cluster is asked, and how to answer."""
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT", help=f"Kafka brokers, instead of {VARIABLE}")
    parser.add_argument("--json", action="store_true", help="print JSON")
