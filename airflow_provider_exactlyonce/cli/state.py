"""The subcommand ``exactlyonce state``."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint, TornFileError
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.checkpoint.state import StateDirectory, StatefulOperator
from airflow_provider_exactlyonce.cli.arguments import PIPELINE, declare, home_of
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.output import print_answer
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.text_tables import table

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.checkpoint.state_rows import StoreRows

_LIMIT: Final = 20


def add_to(program: Command) -> None:
    """Add the command to the program."""
    group = program.add_command(
        "state",
        summary="show what a pipeline keeps in its state",
        example="show shop-totals",
    )
    command = group.add_command(
        "show",
        _show,
        summary="show the rows of the state as of a committed batch",
        details="These are state variables and timers, aggregations, joins, and what was seen. They are read with "
        "Spark from the checkpoint or from a savepoint, and the pipeline may run meanwhile.",
        example="shop-totals --operator 0 --key uuid=4711",
    )
    declare(command, *PIPELINE)
    snapshot = command.add_mutually_exclusive_group()
    snapshot.add_argument("--savepoint", metavar="ID", help="of this savepoint (default: the current checkpoint)")
    snapshot.add_argument(
        "--batch", type=int, metavar="N", help="of this batch of the checkpoint (default: the newest)"
    )
    command.add_argument(
        "--operator", metavar="N", help="of this operator: its number, or a part of its name (default: all)"
    )
    command.add_argument(
        "--store", metavar="NAME", help="this state variable, timers, or store of the operator (default: all)"
    )
    command.add_argument(
        "--key", action="append", default=[], metavar="COLUMN=VALUE", help="of this key; one for each column"
    )
    command.add_argument(
        "--limit", type=int, default=_LIMIT, metavar="ROWS", help="how many of each store (default: %(default)s)"
    )


@dataclass(frozen=True, kw_only=True)
class _StateSnapshot:
    """State that can be opened."""

    checkpoint: Path
    batch: int
    commit: int
    state_format: int
    operators: Sequence[StatefulOperator]


def _show(given: argparse.Namespace) -> None:
    from airflow_provider_exactlyonce.checkpoint.state_reader import local_session
    from airflow_provider_exactlyonce.checkpoint.state_rows import StateRequest, read_rows

    if given.limit < 1:
        raise RefusedError(f"--limit is {given.limit}; it must be at least 1")
    request = StateRequest(operator=given.operator, store=given.store, key=_key(given.key), limit=given.limit)
    with _opened(home_of(given), given.savepoint, given.batch) as snapshot:
        with local_session("exactlyonce state show", snapshot.checkpoint) as session:
            stores = list(
                read_rows(
                    session,
                    snapshot.checkpoint,
                    snapshot.batch,
                    snapshot.operators,
                    request,
                    state_format=snapshot.state_format,
                )
            )
        body = {
            "pipeline": given.pipeline,
            "savepoint": given.savepoint,
            "commit": snapshot.commit,
            "batch": snapshot.batch,
            "stores": [_body(store) for store in stores],
        }
        print_answer(
            given, body, "\n\n".join([f"commit {snapshot.commit}, batch {snapshot.batch}", *map(_text, stores)])
        )


def _key(conditions: Sequence[str]) -> dict[str, str]:
    for condition in conditions:
        if "=" not in condition:
            raise RefusedError(f"--key {condition!r} is not COLUMN=VALUE")
    return dict(condition.split("=", 1) for condition in conditions)


@contextlib.contextmanager
def _opened(home: Home, savepoint_id: str | None, batch: int | None) -> Iterator[_StateSnapshot]:
    """Give the state of a savepoint, from a copy as a restore would make it, or of the current checkpoint."""
    if savepoint_id is None:
        yield _current(home, batch)
        return
    store = Savepoints(home.savepoints)
    savepoint = store.get(savepoint_id)
    with store.copying(savepoint) as checkpoint:
        yield _StateSnapshot(
            checkpoint=checkpoint,
            batch=savepoint.batch,
            commit=savepoint.commit,
            state_format=savepoint.state_format,
            operators=savepoint.operators,
        )


def _current(home: Home, batch: int | None) -> _StateSnapshot:
    lineage = home.current()
    checkpoint = Checkpoint(home.checkpoint(lineage.id)) if lineage is not None else None
    newest = checkpoint.newest_commit() if checkpoint is not None else None
    if lineage is None or checkpoint is None or newest is None:
        raise RefusedError(f"{home} has no checkpoint with a committed batch; pass --savepoint to read a savepoint")
    number = newest if batch is None else batch
    try:
        commit = checkpoint.commit(number)
        if commit is None:
            batches = checkpoint.batches("commits")
            raise RefusedError(
                f"batch {number} is not, or no longer, in {checkpoint.path}, which has {batches[0]} to {batches[-1]}"
            )
        operators = StateDirectory(checkpoint.path).operators(number)
    except (TornFileError, ValueError) as error:
        raise RefusedError(f"batch {number} in {checkpoint.path} can't be read: {error}") from error
    return _StateSnapshot(
        checkpoint=checkpoint.path,
        batch=number,
        commit=lineage.state_of(number),
        state_format=1 if commit.state_ids is None else 2,
        operators=operators,
    )


def _body(store: StoreRows) -> dict[str, Any]:
    return {
        "operator": store.operator.id,
        "name": store.operator.name,
        "store": store.store,
        "kind": store.kind,
        "rows": list(store.rows),
        "more": store.more,
    }


def _text(store: StoreRows) -> str:
    kind = f" ({store.kind})" if store.kind else ""
    lines = [f"operator {store.operator.id}, {store.operator.name}: {store.store}{kind}", table(store.rows) or "no row"]
    if store.more:
        lines.append("and more: --limit, --key")
    return "\n".join(lines)
