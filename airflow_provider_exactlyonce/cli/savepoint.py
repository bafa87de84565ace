"""The subcommand ``exactlyonce savepoint``."""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from airflow_provider_exactlyonce.checkpoint import lineages, request
from airflow_provider_exactlyonce.checkpoint.manifest import Savepoint, encode
from airflow_provider_exactlyonce.checkpoint.savepoints import DEFAULT_RETENTION, SavepointRetention, Savepoints
from airflow_provider_exactlyonce.cli.arguments import add_pipeline_arguments, home_of
from airflow_provider_exactlyonce.cli.output import print_answer
from airflow_provider_exactlyonce.control.home import Lineage
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka import config as kafka_config
from airflow_provider_exactlyonce.text_tables import pairs

_TAKE: Final = "take"
_ACTIONS: Final = (_TAKE, "list", "show", "verify", "delete", "pin", "unpin", "clean-up")


def with_action(arguments: Sequence[str]) -> list[str]:
    """Return a command line in which ``savepoint PIPELINE`` is ``savepoint take PIPELINE``."""
    given = list(arguments)
    if given[:1] == ["savepoint"] and len(given) > 1 and given[1] not in (*_ACTIONS, "-h", "--help"):
        given.insert(1, _TAKE)
    return given


def add_savepoint_parser(subparsers: Any) -> None:
    """Add the subcommand to the program's parser."""
    parser = subparsers.add_parser(
        "savepoint",
        help="take, list, verify and delete savepoints",
        description="Take a savepoint of a pipeline: exactlyonce savepoint PIPELINE. Or look after its savepoints.",
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    take = _action(
        actions,
        _TAKE,
        _take,
        "take one; the word may be left out",
        "A driver that runs takes it beside its query. Of a stopped pipeline it is taken here.",
    )
    take.add_argument("--label", help="what people call it")
    take.add_argument("--stop", action="store_true", help="begin no further batch, take it, and end the driver")
    take.add_argument(
        "--timeout", type=float, default=300.0, metavar="SECONDS", help="how long the driver may take (default: 300)"
    )
    _action(actions, "list", _list, "list them, oldest commit first")
    for name, function, text in (
        ("show", _show, "show one's manifest"),
        ("verify", _verify, "read one's bytes, and its state with Spark"),
        ("delete", _delete, "delete one"),
        ("pin", _pin, "keep one whatever retention says"),
        ("unpin", _pin, "leave one to retention again"),
    ):
        action = _action(actions, name, function, text)
        action.add_argument("savepoint", help="the savepoint's id")
        if name == "verify":
            action.add_argument("--no-state", action="store_true", help="without Spark: sizes and checksums only")
        action.set_defaults(pinned=name == "pin")
    clean_up = _action(actions, "clean-up", _clean_up, "delete old ones, and what interrupted saves have left")
    clean_up.add_argument("--count", type=int, default=DEFAULT_RETENTION.count, help="keep so many (default: 10)")
    clean_up.add_argument("--days", type=float, default=DEFAULT_RETENTION.days, help="keep the younger (default: 1)")


def _action(actions: Any, name: str, function: Any, text: str, description: str | None = None) -> Any:
    parser = actions.add_parser(name, help=text, description=description or f"{text[0].upper()}{text[1:]}.")
    add_pipeline_arguments(parser)
    parser.set_defaults(func=function)
    return parser


def _savepoints(given: argparse.Namespace) -> Savepoints:
    return Savepoints(home_of(given).savepoints)


def _take(given: argparse.Namespace) -> int:
    savepoint = request.take(
        home_of(given),
        given.pipeline,
        kafka_config.from_environment(given.bootstrap_servers),
        label=given.label,
        stop=given.stop,
        timeout_seconds=given.timeout,
    )
    print_answer(given, _summary(savepoint), f"{savepoint.id}: {_sentence(savepoint)}")
    return 0


def _list(given: argparse.Namespace) -> int:
    found = _savepoints(given).list()
    lines = [f"{one.id:<20}  {_sentence(one)}" for one in found]
    print_answer(given, [_summary(one) for one in found], "\n".join(lines) or f"{given.pipeline} has no savepoint")
    return 0


def _show(given: argparse.Namespace) -> int:
    savepoint = _savepoints(given).get(given.savepoint)
    facts = {**_summary(savepoint), "operators": [f"{one.name} x {one.partitions}" for one in savepoint.operators]}
    print_answer(given, encode(savepoint), pairs(facts))
    return 0


def _verify(given: argparse.Namespace) -> int:
    store = _savepoints(given)
    savepoint = store.get(given.savepoint)
    defects = list(map(str, store.verify(savepoint.id)))
    state: list[dict[str, Any]] | None = None
    if not given.no_state and not defects and savepoint.operators:
        state, errors = _read_state(store, savepoint)
        defects += errors
    rows = [f"{one['name']}, store {one['store']}: {one['rows']:,} rows" for one in state or []]
    told = [f"{savepoint.id}: {len(savepoint.files)} files, {savepoint.size:,} bytes", *rows, *defects]
    body = {"savepoint": savepoint.id, "whole": not defects, "defects": defects, "state": state}
    print_answer(given, body, "\n".join(told))
    if defects:
        print(f"savepoint {savepoint.id} is damaged", file=sys.stderr)
    return RefusedError.exit_code if defects else 0


def _read_state(store: Savepoints, savepoint: Savepoint) -> tuple[list[dict[str, Any]], list[str]]:
    """Open a savepoint's state as a restore would make it: some metadata tells where the checkpoint was."""
    from airflow_provider_exactlyonce.checkpoint.state_reader import read_state

    with store.copying() as folder:
        copy = folder / savepoint.id
        lineages.make(copy, store.checkpoint(savepoint.id).path, savepoint.files, Lineage(id=str(uuid.uuid4())))
        return read_state(copy / "checkpoint", savepoint)


def _delete(given: argparse.Namespace) -> int:
    _savepoints(given).delete(given.savepoint)
    print_answer(given, {"deleted": [given.savepoint]}, f"deleted {given.savepoint}")
    return 0


def _pin(given: argparse.Namespace) -> int:
    savepoint = _savepoints(given).pin(given.savepoint, pinned=given.pinned)
    print_answer(given, _summary(savepoint), f"{savepoint.id} is {'pinned' if savepoint.pinned else 'not pinned'}")
    return 0


def _clean_up(given: argparse.Namespace) -> int:
    gone = _savepoints(given).clean_up(SavepointRetention(count=given.count, days=given.days))
    print_answer(given, {"deleted": gone}, "\n".join(f"deleted {one}" for one in gone) or "nothing to delete")
    return 0


def _summary(savepoint: Savepoint) -> dict[str, Any]:
    body = encode(savepoint)
    return {**{name: body[name] for name in body if name not in _LONG}, "created": _time(savepoint.created)}


_LONG: Final = ("schema", "files", "operators", "source_schemas", "result_schema", "plan")


def _sentence(savepoint: Savepoint) -> str:
    label = f", {savepoint.label!r}" if savepoint.label else ""
    pinned = ", pinned" if savepoint.pinned else ""
    return f"commit {savepoint.commit}, {savepoint.size:,} bytes, {_time(savepoint.created)}{label}{pinned}"


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
