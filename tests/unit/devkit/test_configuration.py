"""Ports and properties of the embedded broker."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.devkit.configuration import HOST, Ports, choose_ports, write_properties
from airflow_provider_exactlyonce.devkit.errors import DevkitError


def occupy(port: int = 0) -> socket.socket:
    listener = socket.socket()
    listener.bind((HOST, port))
    listener.listen()
    return listener


def read(path: Path) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition("=") for line in path.read_text().splitlines())}


def test_chosen_ports_lie_below_those_of_outgoing_connections(tmp_path: Path) -> None:
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = choose_ports(tmp_path, 0)
    assert ports.client < first_outgoing
    assert ports.controller < first_outgoing
    assert ports.client != ports.controller


def test_a_wished_port_that_is_taken_is_refused_by_number(tmp_path: Path) -> None:
    with occupy() as listener:
        port = listener.getsockname()[1]
        with pytest.raises(DevkitError, match=f"port {port} on {HOST} is taken"):
            choose_ports(tmp_path, port)


def test_the_ports_of_the_last_start_are_taken_again_if_they_are_free(tmp_path: Path) -> None:
    before = choose_ports(tmp_path, 0)
    write_properties(tmp_path, before, {})
    assert choose_ports(tmp_path, 0) == before
    with occupy(before.client):
        after = choose_ports(tmp_path, 0)
    assert after.client != before.client
    assert after.controller == before.controller


def test_a_wished_port_wins_over_that_of_the_last_start(tmp_path: Path) -> None:
    before = choose_ports(tmp_path, 0)
    write_properties(tmp_path, before, {})
    with occupy() as listener:
        wished = listener.getsockname()[1]
    assert choose_ports(tmp_path, wished) == Ports(client=wished, controller=before.controller)


def test_properties_of_the_caller_win_over_the_defaults(tmp_path: Path) -> None:
    path = write_properties(tmp_path, Ports(client=1, controller=2), {"num.io.threads": "8", "message.max.bytes": "9"})
    properties = read(path)
    assert properties["num.io.threads"] == "8"
    assert properties["message.max.bytes"] == "9"
    assert properties["auto.create.topics.enable"] == "false"


def test_the_broker_listens_on_the_loopback_interface_only(tmp_path: Path) -> None:
    properties = read(write_properties(tmp_path, Ports(client=1, controller=2), {}))
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2"


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"listeners": "PLAINTEXT://0.0.0.0:9092"}, "sets listeners itself"),
        ({"num.io.threads": "8\nlisteners=PLAINTEXT://0.0.0.0:9092"}, "has a line break"),
    ],
)
def test_a_property_that_would_undo_that_is_refused(tmp_path: Path, properties: dict[str, str], expected: str) -> None:
    with pytest.raises(DevkitError, match=expected):
        write_properties(tmp_path, Ports(client=1, controller=2), properties)


def test_secure_listeners_stand_beside_the_plain_one_and_keep_their_ports(tmp_path: Path) -> None:
    protocols = ("SASL_SSL", "SASL_PLAINTEXT")
    ports = choose_ports(tmp_path, 0, protocols)
    assert len({ports.client, ports.controller, *ports.secure.values()}) == 4
    properties = read(write_properties(tmp_path, ports, {}))
    clients = f"PLAINTEXT://{HOST}:{ports.client}," + ",".join(
        f"{protocol}://{HOST}:{ports.secure[protocol]}" for protocol in protocols
    )
    assert properties["advertised.listeners"] == clients
    assert properties["listeners"] == f"{clients},CONTROLLER://{HOST}:{ports.controller}"
    assert properties["listener.security.protocol.map"].endswith(",SASL_SSL:SASL_SSL,SASL_PLAINTEXT:SASL_PLAINTEXT")
    assert choose_ports(tmp_path, 0, protocols) == ports


def test_the_properties_may_hold_passwords_and_are_for_their_owner_only(tmp_path: Path) -> None:
    assert write_properties(tmp_path, Ports(client=1, controller=2), {}).stat().st_mode & 0o077 == 0
