"""The subcommand ``exactlyonce convert-files``: makes a Delta table of the files that 0.1.0's file sink committed."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

from airflow_provider_exactlyonce.cli.arguments import HOME, declare, home_of
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.output import print_answer
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.text_tables import pairs


def add_to(program: Command) -> None:
    """Add the command to the program."""
    command = program.add_command(
        "convert-files",
        _convert,
        summary="make a Delta table of what a file sink of 0.1.0 has committed",
        details="The table is in the same directory. A DeltaSink of the same name goes on there at the next commit. "
        "The old files stay, and no process of 0.1.0 can add to them. The pipeline must be stopped. The command may be "
        "repeated after it was killed.",
        example="/var/lib/payments --dry-run --home /var/lib/home",
        exit_codes={0: "converted, or it was before", 65: "the pipeline runs"},
    )
    command.add_argument("path", metavar="PATH", help="the path or URL that the file sink declares")
    command.add_argument(
        "--partition-by",
        metavar="COLUMNS",
        help="the table's partition columns, with commas between them, some or none of the file sink's (default: all)",
    )
    command.add_argument(
        "--dry-run", action="store_true", help="check what a conversion checks, and say what it would do"
    )
    declare(command, *HOME)


def _convert(given: argparse.Namespace) -> None:
    try:
        from airflow_provider_exactlyonce.streaming.sinks.files import conversion
    except ImportError as error:
        raise RefusedError(
            f"files can't be converted here: {error}. pip install 'airflow-provider-exactlyonce[spark,delta]'"
        ) from error

    old = conversion.find(given.path if "://" in given.path else str(Path(given.path).absolute()))
    partition_by = old.partition_by if given.partition_by is None else list(filter(None, given.partition_by.split(",")))
    facts: dict[str, Any] = {
        "path": old.path,
        "pipeline": old.pipeline,
        "sink": old.sink,
        "commit": old.entry.commit,
        "rows": old.rows,
        "files": len(old.files),
        "partition_by": partition_by,
    }
    with contextlib.ExitStack() as stack:
        if given.dry_run:
            conversion.check(old, partition_by)
        else:
            given.pipeline = old.pipeline
            home = home_of(given)
            stack.enter_context(leases.holding_stopped(home.lease, old.pipeline, "convert"))
            facts["converted"] = conversion.convert(old, partition_by)
    print_answer(given, facts, pairs(facts))
