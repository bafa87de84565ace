"""The subcommand ``exactlyonce savepoint``."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, Final

from airflow_provider_exactlyonce import moments
from airflow_provider_exactlyonce.checkpoint import request
from airflow_provider_exactlyonce.checkpoint.manifest import Savepoint, encode
from airflow_provider_exactlyonce.checkpoint.savepoints import DEFAULT_RETENTION, SavepointRetention, Savepoints
from airflow_provider_exactlyonce.cli.arguments import PIPELINE, declare, home_of
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.output import print_answer, tell
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka import config as kafka_config
from airflow_provider_exactlyonce.text_tables import pairs


def add_to(program: Command) -> None:
    """Add the command to the program."""
    group = program.add_command(
        "savepoint",
        summary="take, list, verify and delete savepoints",
        details="Without a command of its own it takes one.",
        example="shop-totals --label nightly",
        default="take",
    )
    take = group.add_command(
        "take",
        _take,
        summary="take a savepoint; the word take may be left out",
        details="A driver that runs takes it beside its query. The savepoint of a stopped pipeline is taken here.",
        example="shop-totals --label nightly",
    )
    declare(take, *PIPELINE)
    take.add_argument("--label", metavar="TEXT", help="what people call it")
    take.add_argument("--stop", action="store_true", help="begin no further batch, take it, and end the driver")
    declare(take, "--timeout")
    listing = group.add_command(
        "list", _list, summary="list the savepoints, oldest commit first", example="shop-totals"
    )
    declare(listing, *PIPELINE)
    for name, function, summary in (
        ("show", _show, "show the manifest of a savepoint"),
        ("verify", _verify, "read the bytes of a savepoint, and its state with Spark"),
        ("delete", _delete, "delete a savepoint"),
        ("pin", _pin, "keep a savepoint whatever the retention says"),
        ("unpin", _pin, "let the retention delete a savepoint again"),
    ):
        codes = {64: "damaged, or refused"} if name == "verify" else None
        command = group.add_command(
            name, function, summary=summary, example="shop-totals 40-1f3a9c2e-77ab01c2", exit_codes=codes
        )
        declare(command, *PIPELINE)
        command.add_argument("savepoint", metavar="ID", help="the savepoint's id")
        if name == "verify":
            command.add_argument("--no-state", action="store_true", help="without Spark: sizes and checksums only")
        command.set_defaults(pinned=name == "pin")
    clean_up = group.add_command(
        "clean-up",
        _clean_up,
        summary="delete old savepoints, and what interrupted ones have left",
        example="shop-totals --count 3",
    )
    declare(clean_up, *PIPELINE)
    count, days = DEFAULT_RETENTION.count, DEFAULT_RETENTION.days
    clean_up.add_argument(
        "--count", type=int, default=count, metavar="N", help="keep the newest N (default: %(default)s)"
    )
    clean_up.add_argument(
        "--days", type=float, default=days, metavar="N", help="keep those of the last N days (default: %(default)g)"
    )


def _savepoints(given: argparse.Namespace) -> Savepoints:
    return Savepoints(home_of(given).savepoints)


def _take(given: argparse.Namespace) -> None:
    savepoint = request.take(
        home_of(given),
        given.pipeline,
        kafka_config.from_environment(given.bootstrap_servers),
        label=given.label,
        stop=given.stop,
        timeout_seconds=given.timeout,
    )
    print_answer(given, _summary(savepoint), f"{savepoint.id}: {_sentence(savepoint)}")


def _list(given: argparse.Namespace) -> None:
    savepoints = _savepoints(given).list()
    width = max((len(savepoint.id) for savepoint in savepoints), default=0)
    lines = [f"{savepoint.id:<{width}}  {_sentence(savepoint)}" for savepoint in savepoints]
    print_answer(
        given,
        [_summary(savepoint) for savepoint in savepoints],
        "\n".join(lines) or f"{given.pipeline} has no savepoint",
    )


def _show(given: argparse.Namespace) -> None:
    savepoint = _savepoints(given).get(given.savepoint)
    facts = {
        **_summary(savepoint),
        "operators": [f"{operator.name} x {operator.partitions}" for operator in savepoint.operators],
    }
    print_answer(given, encode(savepoint), pairs(facts))


def _verify(given: argparse.Namespace) -> int:
    store = _savepoints(given)
    savepoint = store.get(given.savepoint)
    defects = list(map(str, store.verify(savepoint.id)))
    state: list[dict[str, Any]] | None = None
    if not given.no_state and not defects and savepoint.operators:
        from airflow_provider_exactlyonce.checkpoint.state_reader import read_state

        with store.copying(savepoint) as checkpoint:  # some metadata tells where it is
            state, errors = read_state(checkpoint, savepoint)
        defects += errors
    rows = [
        f"{state_store['name']}, store {state_store['store']}: {state_store['rows']:,} rows"
        for state_store in state or []
    ]
    lines = [f"{savepoint.id}: {len(savepoint.files)} files, {savepoint.size:,} bytes", *rows, *defects]
    body = {"savepoint": savepoint.id, "whole": not defects, "defects": defects, "state": state}
    print_answer(given, body, "\n".join(lines))
    if defects:
        tell(f"savepoint {savepoint.id} is damaged")
    return RefusedError.exit_code if defects else 0


def _delete(given: argparse.Namespace) -> None:
    _savepoints(given).delete(given.savepoint)
    print_answer(given, {"deleted": [given.savepoint]}, f"deleted {given.savepoint}")


def _pin(given: argparse.Namespace) -> None:
    savepoint = _savepoints(given).pin(given.savepoint, pinned=given.pinned)
    print_answer(given, _summary(savepoint), f"{savepoint.id} is {'pinned' if savepoint.pinned else 'not pinned'}")


def _clean_up(given: argparse.Namespace) -> None:
    deleted = _savepoints(given).clean_up(SavepointRetention(count=given.count, days=given.days))
    print_answer(
        given,
        {"deleted": deleted},
        "\n".join(f"deleted {savepoint_id}" for savepoint_id in deleted) or "nothing to delete",
    )


def _summary(savepoint: Savepoint) -> dict[str, Any]:
    body = encode(savepoint)
    return {**{name: body[name] for name in body if name not in _LONG}, "created": _time(savepoint.created)}


_time: Final = partial(moments.text, timespec="seconds")
_LONG: Final = ("schema", "files", "operators", "source_schemas", "result_schema", "plan")


def _sentence(savepoint: Savepoint) -> str:
    label = f", {savepoint.label!r}" if savepoint.label else ""
    pinned = ", pinned" if savepoint.pinned else ""
    return f"commit {savepoint.commit}, {savepoint.size:,} bytes, {_time(savepoint.created)}{label}{pinned}"
