"""The command ``exactlyonce``: thin; every subcommand calls what the operators call."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from airflow_provider_exactlyonce.cli.audit import add_audit_parser
from airflow_provider_exactlyonce.cli.audit_sinks import add_audit_sinks_parser
from airflow_provider_exactlyonce.cli.backfill import add_backfill_parser
from airflow_provider_exactlyonce.cli.broker import add_broker_parser
from airflow_provider_exactlyonce.cli.check import add_check_parser
from airflow_provider_exactlyonce.cli.doctor import add_doctor_parser
from airflow_provider_exactlyonce.cli.explain import add_explain_parser
from airflow_provider_exactlyonce.cli.help import add_help_parser
from airflow_provider_exactlyonce.cli.list_pipelines import add_list_parser
from airflow_provider_exactlyonce.cli.rescale import add_rescale_parser
from airflow_provider_exactlyonce.cli.restore import add_restore_parser
from airflow_provider_exactlyonce.cli.run import add_run_parser
from airflow_provider_exactlyonce.cli.savepoint import add_savepoint_parser, with_action
from airflow_provider_exactlyonce.cli.state import add_state_parser
from airflow_provider_exactlyonce.cli.status import add_status_parser
from airflow_provider_exactlyonce.cli.stop import add_stop_parser
from airflow_provider_exactlyonce.cli.transactions import add_transactions_parser
from airflow_provider_exactlyonce.cli.upgrade import add_upgrade_parser
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, UnknownPipelineError
from airflow_provider_exactlyonce.kafka import config as kafka_config
from airflow_provider_exactlyonce.ledger import listing


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the process's exit code."""
    parser = argparse.ArgumentParser(prog="exactlyonce", description="Exactly-once PySpark streams.")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add_run_parser(subparsers)
    add_status_parser(subparsers)
    add_list_parser(subparsers)
    add_stop_parser(subparsers)
    add_savepoint_parser(subparsers)
    add_state_parser(subparsers)
    add_restore_parser(subparsers)
    add_rescale_parser(subparsers)
    add_check_parser(subparsers)
    add_explain_parser(subparsers)
    add_upgrade_parser(subparsers)
    add_backfill_parser(subparsers)
    add_audit_parser(subparsers)
    add_audit_sinks_parser(subparsers)
    add_doctor_parser(subparsers)
    add_transactions_parser(subparsers)
    add_broker_parser(subparsers)
    add_help_parser(subparsers)
    given = parser.parse_args(with_action(sys.argv[1:] if arguments is None else arguments))
    try:
        return int(given.func(given))
    except UnknownPipelineError as error:
        config = kafka_config.from_environment(given.bootstrap_servers)
        return _failed(error, f". {listing.hint(config, given.pipeline)}")
    except ExactlyOnceError as error:
        return _failed(error)


def _failed(error: ExactlyOnceError, hint: str = "") -> int:
    print(f"{type(error).__name__}: {error}{hint} ({error.page()})", file=sys.stderr)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
