"""The subcommand ``exactlyonce list``."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

from airflow_provider_exactlyonce import moments
from airflow_provider_exactlyonce.cli.arguments import CLUSTER, declare
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.output import print_answer
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.pipeline_state import state_of
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.ledger import listing
from airflow_provider_exactlyonce.ledger.reader import LedgerConnections, LedgerReader, LedgerTail
from airflow_provider_exactlyonce.ledger.records import ClaimRecord, backfilled
from airflow_provider_exactlyonce.text_tables import table

#: What a state is shown as when the home is not on this machine, or can't be read.
_UNKNOWN = "unknown"


def add_to(program: Command) -> None:
    """Add the command to the program."""
    command = program.add_command(
        "list",
        _list,
        summary="show all pipelines of a cluster",
        details="A pipeline is shown with its last commit and run, its home, and its state if the home is on this "
        "machine. Its backfills have a ledger and a line of their own.",
        example="--bootstrap-servers localhost:9092",
    )
    declare(command, *CLUSTER)


def _list(given: argparse.Namespace) -> None:
    from confluent_kafka import KafkaException

    config = reach.reached(given.bootstrap_servers)
    try:
        with closing(LedgerConnections(config)) as connections:
            rows = [_facts(connections, name) for name in listing.names(config)]
    except KafkaException as error:
        raise reach.unreachable(config) from error
    filled_columns = {name for row in rows for name, value in row.items() if value is not None}
    lines = table([{name: value for name, value in row.items() if name in filled_columns} for row in rows])
    print_answer(given, {"pipelines": rows}, lines or "no pipeline has ever been started on this cluster")


def _facts(connections: LedgerConnections, name: str) -> dict[str, Any]:
    from confluent_kafka import KafkaException

    tail: LedgerTail | None = None
    error: str | None = None
    try:
        tail = LedgerReader(connections, name).tail()
    except (ExactlyOnceError, KafkaException) as unreadable:  # a right may be missing for one of them
        error = str(unreadable)
    claim, commit = (tail.claim, tail.commit) if tail is not None else (None, None)
    return {
        "pipeline": name,
        "backfills_of": backfilled(name),
        "state": _state(claim) if claim is not None else None,
        "run": claim.run if claim is not None else None,
        "commit": tail.place.commit if tail is not None else None,
        "committed": moments.text(commit.committed, "seconds") if commit is not None else None,
        "guarantee": claim.guarantee if claim is not None else None,
        "version": claim.version if claim is not None else None,
        "home": claim.home_path if claim is not None else None,
        "error": error,
    }


def _state(claim: ClaimRecord) -> str:
    """Return the state that the home tells of; the lease of a copy, or of an equal path elsewhere, tells nothing."""
    try:
        home = Home(claim.home_path)
        return state_of(home)[0].value if home.identity() == claim.home else _UNKNOWN
    except (RefusedError, OSError):
        return _UNKNOWN
