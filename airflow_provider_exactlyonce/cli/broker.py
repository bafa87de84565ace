"""``exactlyonce broker start|stop|status|create-topic``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.cli.arguments import declare
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.output import tell
from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker, end_broker
from airflow_provider_exactlyonce.devkit.configuration import HOST
from airflow_provider_exactlyonce.devkit.errors import DevkitError
from airflow_provider_exactlyonce.devkit.probe import why_not_ready
from airflow_provider_exactlyonce.devkit.state import BrokerState
from airflow_provider_exactlyonce.devkit.topics import create_topic
from airflow_provider_exactlyonce.jars.cache import resolve

DEFAULT_DATA: Final = Path(".exactlyonce/broker")
EXIT_FAILED: Final = 1
EXIT_NOT_RUNNING: Final = 3  # as service managers have it


def add_to(program: Command) -> None:
    """Add the command to the program."""
    group = program.add_command(
        "broker",
        summary="run an embedded Kafka broker for development",
        details="It is a real broker of one node on the loopback interface. It is not for production.",
        example="start --port 9092",
    )
    start = group.add_command(
        "start",
        partial(_guarded, _start),
        summary="start the broker in the background and wait until it is ready",
        example="--port 9092",
    )
    start.add_argument("--port", type=int, default=0, help="where clients connect (default: as last time, or any)")
    group.add_command("stop", partial(_guarded, _stop), summary="stop the broker and keep its data", example="")
    group.add_command(
        "status",
        partial(_guarded, _status),
        summary="tell whether the broker runs",
        example="--json",
        exit_codes={0: "it runs", EXIT_NOT_RUNNING: "it does not run"},
    )
    create = group.add_command(
        "create-topic",
        partial(_guarded, _create_topic),
        summary="make a topic on the broker; may be repeated",
        example="shop.events --partitions 4",
    )
    create.add_argument("name", metavar="NAME", help="the topic's name")
    create.add_argument(
        "--partitions", type=int, metavar="N", help="how many it has (default: 1, or as many as it has if it is there)"
    )
    for command in group.commands.values():
        command.add_argument(
            "--data",
            type=Path,
            default=DEFAULT_DATA,
            metavar="DIR",
            help="where it keeps its data (default: %(default)s)",
        )
        declare(command, "--json")


def _start(given: argparse.Namespace) -> None:
    state = BrokerState.load_living(given.data)
    if state is None:
        resolve(tell)
        broker = EmbeddedBroker(given.data, port=given.port, detached=True)
        broker.start()
        state = broker.state
    elif given.port not in (0, state.port):
        raise DevkitError(f"a broker runs on {given.data} already, on port {state.port}, not {given.port}")
    _print(given, state, "running")


def _stop(given: argparse.Namespace) -> None:
    state = BrokerState.load_living(given.data)
    if state is not None:
        end_broker(given.data, state)
    _print(given, None, "stopped")


def _status(given: argparse.Namespace) -> int:
    state = BrokerState.load_living(given.data)
    if state is None:
        _print(given, None, "stopped")
        return EXIT_NOT_RUNNING
    _print(given, state, "starting" if why_not_ready(HOST, state.port, state.cluster_id) else "running")
    return 0


def _create_topic(given: argparse.Namespace) -> None:
    state = BrokerState.load_living(given.data)
    if state is None:
        data = given.data
        raise DevkitError(f"no broker runs on {data}: start it with exactlyonce broker start --data {data}")
    topic = create_topic(state.bootstrap_servers, given.name, given.partitions)
    if given.json:
        print(json.dumps({"topic": given.name, "partitions": topic.partitions, "created": topic.created}))
    else:
        word = "created" if topic.created else "there already"
        print(f"{given.name}: {word}, partitions: {topic.partitions}, broker {state.bootstrap_servers}")


def _guarded(function: Callable[[argparse.Namespace], int | None], given: argparse.Namespace) -> int | None:
    try:
        return function(given)
    except DevkitError as error:
        if given.json:
            print(json.dumps({"data": str(given.data.absolute()), "state": "failed", "error": str(error)}))
        else:
            tell(f"exactlyonce broker: {error}")
        return EXIT_FAILED


def _print(given: argparse.Namespace, state: BrokerState | None, word: str) -> None:
    data = str(given.data.absolute())
    servers, pid = (state.bootstrap_servers, state.process.pid) if state else (None, None)
    if given.json:
        print(json.dumps({"bootstrap_servers": servers, "pid": pid, "data": data, "state": word}))
    elif state:
        print(f"{word}: {servers}, pid {pid}, data in {data}")
    else:
        print(f"{word}: data in {data}")
