"""The subcommand ``exactlyonce restore``."""

from __future__ import annotations

import argparse
from typing import Any

from airflow_provider_exactlyonce.checkpoint.request import take_retained
from airflow_provider_exactlyonce.checkpoint.restore import Restored, RestoreMode, RestoreRequest, restore
from airflow_provider_exactlyonce.cli.arguments import PIPELINE, declare, home_of
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.output import print_answer
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.storage.opening import place_of
from airflow_provider_exactlyonce.text_tables import pairs


def add_to(program: Command) -> None:
    """Add the command to the program."""
    command = program.add_command(
        "restore",
        _restore,
        summary="make a pipeline go on from a savepoint, without a duplicate and without a loss",
        details="It makes a new lineage of the savepoint. The next start of the pipeline's driver runs it: it replays "
        "what was committed since without writing it again, and then goes on. The pipeline must be stopped.",
        example="shop-totals --commit 12",
        exit_codes={0: "restored", 65: "the pipeline runs"},
    )
    declare(command, *PIPELINE)
    command.add_argument("--savepoint", metavar="ID", help="the savepoint (default: the newest)")
    command.add_argument("--commit", type=int, metavar="C", help="the newest savepoint at or before this commit")
    command.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="a retained checkpoint; a savepoint is taken of its newest whole batch, and restored",
    )
    command.add_argument(
        "--mode",
        type=RestoreMode,
        choices=list(RestoreMode),
        default=RestoreMode.SUPPRESS,
        help="what happens to the commits after the savepoint: suppress replays them without writing (default), fail "
        "refuses if there are any, reemit writes their output again",
    )
    command.add_argument(
        "--to",
        metavar="DIR",
        help="make the lineage in this new directory, and leave the pipeline as it is",
    )
    declare(command, "--accept-nondeterminism")


def _restore(given: argparse.Namespace) -> None:
    config, home = reach.reached(given.bootstrap_servers), home_of(given)
    savepoint = given.savepoint
    if given.checkpoint is not None:
        if given.savepoint is not None or given.commit is not None:
            raise RefusedError("--checkpoint, --savepoint and --commit exclude each other; pass one of them")
        savepoint = take_retained(home, given.pipeline, config, place_of(given.checkpoint)).id
    request = RestoreRequest(
        savepoint=savepoint,
        commit=given.commit,
        mode=given.mode,
        to=place_of(given.to) if given.to is not None else None,
        accept_nondeterminism=given.accept_nondeterminism,
    )
    facts = _facts(restore(home, given.pipeline, config, request), request.mode, given.pipeline)
    print_answer(given, facts, pairs(facts))


def _facts(restored: Restored, mode: RestoreMode, pipeline: str) -> dict[str, Any]:
    span, last_commit = restored.span, restored.lineage.last_commit
    return {
        "pipeline": pipeline,
        "savepoint": restored.savepoint.id,
        "savepoint_commit": restored.savepoint.commit,
        "last_commit": last_commit,
        "mode": mode.value,
        "lineage": restored.lineage.id,
        "directory": str(restored.directory),
        "abandoned": restored.lineage.parent,
        "replayed_commits": [span.first, span.last] if span else None,
        "replayed_source_records": span.records if span else 0,
        "seconds_when_committed": round(span.seconds, 3) if span else 0.0,
        "versions": [list(part) for part in span.versions] if span else [],
        "reemitted_commits": [restored.savepoint.commit + 1, last_commit]
        if restored.lineage.reemits is not None
        else None,
    }
