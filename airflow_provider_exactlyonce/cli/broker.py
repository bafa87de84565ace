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
from airflow_provider_exactlyonce.devkit.jars import resolve
from airflow_provider_exactlyonce.devkit.probe import why_not_ready
from airflow_provider_exactlyonce.devkit.state import BrokerState
from airflow_provider_exactlyonce.devkit.topics import create_topic

DEFAULT_DATA: Final = Path(".exactlyonce/broker")
EXIT_FAILED: Final = 1
EXIT_NOT_RUNNING: Final = 3  # as service managers have it


def add_to(program: Command) -> None:
    """Add the command to those of the program."""
    group = program.add_command(
        "broker",
        summary="run an embedded Kafka broker for development",
        details="It is a real broker of one node on the loopback interface. It is not for production.",
        example="start --port 9092",
    )
    start = group.add_command(
        "start",
        partial(_guarded, start_command),
        summary="start the broker in the background and wait until it is ready",
        example="--port 9092",
    )
    start.add_argument("--port", type=int, default=0, help="where clients connect (default: as last time, or any)")
    group.add_command("stop", partial(_guarded, stop_command), summary="stop the broker and keep its data", example="")
    group.add_command(
        "status",
        partial(_guarded, status_command),
        summary="tell whether the broker runs",
        example="--json",
        exit_codes={0: "it runs", EXIT_NOT_RUNNING: "it does not run"},
    )
    create = group.add_command(
        "create-topic",
        partial(_guarded, create_topic_command),
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


def start_command(arguments: argparse.Namespace) -> int:
    """Start a broker that outlives this process; one that runs already is left as it is."""
    state = BrokerState.load_living(arguments.data)
    if state is None:
        resolve(tell)
        broker = EmbeddedBroker(arguments.data, port=arguments.port, detached=True)
        broker.start()
        state = broker.state
    elif arguments.port not in (0, state.port):
        raise DevkitError(f"a broker runs on {arguments.data} already, on port {state.port}, not {arguments.port}")
    _print(arguments, state, "running")
    return 0


def stop_command(arguments: argparse.Namespace) -> int:
    """Stop the broker of this data; that none runs is no error."""
    state = BrokerState.load_living(arguments.data)
    if state is not None:
        end_broker(arguments.data, state)
    _print(arguments, None, "stopped")
    return 0


def status_command(arguments: argparse.Namespace) -> int:
    """Say whether the broker of this data runs, and whether clients can work with it."""
    state = BrokerState.load_living(arguments.data)
    if state is None:
        _print(arguments, None, "stopped")
        return EXIT_NOT_RUNNING
    _print(arguments, state, "starting" if why_not_ready(HOST, state.port, state.cluster_id) else "running")
    return 0


def create_topic_command(arguments: argparse.Namespace) -> int:
    """Make a topic on the broker of this data; one that is there with as many partitions is left as it is."""
    state = BrokerState.load_living(arguments.data)
    if state is None:
        data = arguments.data
        raise DevkitError(f"no broker runs on {data}: start it with exactlyonce broker start --data {data}")
    made = create_topic(state.bootstrap_servers, arguments.name, arguments.partitions)
    if arguments.json:
        print(json.dumps({"topic": arguments.name, "partitions": made.partitions, "created": made.created}))
    else:
        word = "created" if made.created else "there already"
        print(f"{arguments.name}: {word}, partitions: {made.partitions}, broker {state.bootstrap_servers}")
    return 0


def _guarded(function: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    try:
        return function(arguments)
    except DevkitError as error:
        if arguments.json:
            print(json.dumps({"data": str(arguments.data.absolute()), "state": "failed", "error": str(error)}))
        else:
            tell(f"exactlyonce broker: {error}")
        return EXIT_FAILED


def _print(arguments: argparse.Namespace, state: BrokerState | None, word: str) -> None:
    data = str(arguments.data.absolute())
    servers, pid = (state.bootstrap_servers, state.process.pid) if state else (None, None)
    if arguments.json:
        print(json.dumps({"bootstrap_servers": servers, "pid": pid, "data": data, "state": word}))
    elif state:
        print(f"{word}: {servers}, pid {pid}, data in {data}")
    else:
        print(f"{word}: data in {data}")
