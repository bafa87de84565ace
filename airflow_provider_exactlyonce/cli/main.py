"""The command ``exactlyonce``: thin; every command calls the same functions as the operators."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from airflow_provider_exactlyonce.cli import (
    audit,
    audit_sinks,
    backfill,
    broker,
    check,
    convert_files,
    doctor,
    explain,
    help,
    home,
    list_pipelines,
    prepare,
    rescale,
    restore,
    run,
    savepoint,
    state,
    status,
    stop,
    transactions,
    upgrade,
)
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.output import tell
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, UnknownPipelineError
from airflow_provider_exactlyonce.kafka import config as kafka_config
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.ledger import listing

#: A shell's exit code for what SIGINT has ended.
INTERRUPTED: Final = 130

#: In the order in which ``exactlyonce --help`` has them.
_COMMANDS: Final = (
    *(run, status, list_pipelines, stop, savepoint, state, restore, rescale, check, explain, upgrade, backfill),
    *(home, audit, audit_sinks, convert_files, doctor, transactions, prepare, broker, help),
)


def program() -> Command:
    """Return the whole command line."""
    root = Command(
        prog="exactlyonce",
        summary="run and look after exactly-once PySpark streams",
        details="`exactlyonce help exit-codes` has all exit codes.",
        example="list --bootstrap-servers localhost:9092",
        exit_codes={
            0: "done",
            1: "failed; it may be tried again",
            2: "the command line is wrong",
            64: "refused; nothing was changed",
        },
    )
    for command in _COMMANDS:
        command.add_to(root)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the process's exit code."""
    given = program().parse_args(sys.argv[1:] if arguments is None else arguments)
    try:
        return int(given.func(given) or 0)
    except UnknownPipelineError as error:
        config = kafka_config.from_environment(given.bootstrap_servers)
        return _failed(error, f". {listing.hint(config, given.pipeline)}")
    except ExactlyOnceError as error:
        return _failed(error)
    except KeyboardInterrupt:
        tell("interrupted. The command may be tried again")
        return INTERRUPTED
    except OSError as error:  # a full disk, a right that is missing
        return _failed(ExactlyOnceError(f"the system says: {error}. The command may be tried again"))
    except Exception as error:
        from confluent_kafka import KafkaException

        if not isinstance(error, KafkaException):
            raise
        return _failed(_kafka_trouble(given, error.args[0].str()))


def _kafka_trouble(given: argparse.Namespace, message: str) -> ExactlyOnceError:
    config = kafka_config.from_environment(given.bootstrap_servers)
    return reach.trouble(config) or ExactlyOnceError(
        f"Kafka at {config['bootstrap.servers']} says: {message}. The command may be tried again"
    )


def _failed(error: ExactlyOnceError, hint: str = "") -> int:
    tell(f"{type(error).__name__}: {error}{hint} ({error.page()})")
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
