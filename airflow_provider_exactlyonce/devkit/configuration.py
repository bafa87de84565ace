"""The embedded broker's configuration: its ports, its ``server.properties``, its logging."""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.devkit.errors import DevkitError

HOST: Final = "127.0.0.1"
BROKER_ID: Final = 1
PROPERTIES_NAME: Final = "server.properties"
FENCING_PROPERTIES_NAME: Final = "fencing.properties"
FENCING_SESSION_TIMEOUT_MILLISECONDS: Final = 100
PORT_ATTEMPTS: Final = 200
LOWEST_PORT: Final = 10_000

# Small, for one user on one machine: one replica of everything, few internal partitions, and clean-up that a test can
# wait for. The session is long, because a broker that is starved of the processor must not be fenced: Kafka 4.2 and 4.3
# drop the transaction markers that are due while a partition has no leader. See storage.py for what follows from that.
DEFAULTS: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": "120000",
    "default.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "16777216",
    "log.index.size.max.bytes": "1048576",
    "log.retention.ms": "-1",  # examples and tests write records with timestamps of years ago
    "num.io.threads": "4",
    "num.network.threads": "2",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
}

# Warnings, and from the coordinator who began or fenced which transactional id.
LOGGING_OPTIONS: Final = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.coordinator.transaction.TransactionCoordinator=info",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)


@dataclass(frozen=True, kw_only=True)
class Ports:
    """The ports of a broker, all on the loopback interface only.

    :param client: of the plain listener
    :param secure: of the listeners that authenticate clients, by security protocol
    """

    client: int
    controller: int
    secure: Mapping[str, int] = field(default_factory=dict)


def choose_ports(data_directory: Path, port: int, protocols: Collection[str] = ()) -> Ports:
    """Choose the given port, else the ports of the last start here if they are free, else any.

    :param port: 0 for any
    :param protocols: security protocols that have a listener beside the plain one, such as ``SASL_SSL``
    :raises DevkitError: when the wished port is taken
    """
    if port and not _is_free(port):
        raise DevkitError(f"port {port} on {HOST} is taken; choose another, or 0 for any free one")
    previous, taken = _previous_ports(data_directory), {port} - {0}

    def choose(listener: str) -> int:
        previous_port = previous.get(listener, 0)
        chosen = (
            previous_port
            if previous_port and previous_port not in taken and _is_free(previous_port)
            else _any_free_port(taken)
        )
        taken.add(chosen)
        return chosen

    return Ports(
        client=port or choose("PLAINTEXT"),
        controller=choose("CONTROLLER"),
        secure={protocol: choose(protocol) for protocol in protocols},
    )


def write_properties(data_directory: Path, ports: Ports, extra: Mapping[str, str]) -> Path:
    """Write ``server.properties`` and return where it is.

    :param extra: added to the defaults, and stronger than they
    :raises DevkitError: when ``extra`` names a setting of the devkit's own, or can't be written in that format
    """
    listening = {"PLAINTEXT": ports.client, **ports.secure}
    clients = [f"{protocol}://{HOST}:{port}" for protocol, port in listening.items()]
    own_properties = {
        **_controller_properties(data_directory, ports),
        "advertised.listeners": ",".join(clients),
        "inter.broker.listener.name": "PLAINTEXT",
        "listeners": ",".join((*clients, f"CONTROLLER://{HOST}:{ports.controller}")),
        "process.roles": "broker,controller",
    }
    if reserved := sorted(own_properties.keys() & extra.keys()):
        raise DevkitError(f"the embedded broker sets {', '.join(reserved)} itself; leave it out of `properties`")
    if "," in own_properties["log.dirs"]:
        raise DevkitError(
            f"the data directory {data_directory} has a comma in its path, which Kafka takes for two paths"
        )
    return _write(data_directory / PROPERTIES_NAME, {**DEFAULTS, **extra, **own_properties})


def write_fencing_properties(data_directory: Path, ports: Ports) -> Path:
    """Write the properties of a start without the broker's half, which fences the broker that was killed."""
    properties = {
        **_controller_properties(data_directory, ports),
        "broker.heartbeat.interval.ms": str(FENCING_SESSION_TIMEOUT_MILLISECONDS // 2),
        "broker.session.timeout.ms": str(FENCING_SESSION_TIMEOUT_MILLISECONDS),
        "listeners": f"CONTROLLER://{HOST}:{ports.controller}",
        "process.roles": "controller",
    }
    return _write(data_directory / FENCING_PROPERTIES_NAME, properties)


def log_directory(data_directory: Path) -> Path:
    """Return where the broker keeps its topics."""
    return data_directory / "kafka"


def cluster_id(data_directory: Path) -> str | None:
    """Read the id that formatting gave the storage, None before that."""
    return _property(log_directory(data_directory) / "meta.properties", "cluster.id")


def _controller_properties(data_directory: Path, ports: Ports) -> dict[str, str]:
    return {
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"{BROKER_ID}@{HOST}:{ports.controller}",
        "listener.security.protocol.map": ",".join(
            ("PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT", *(f"{protocol}:{protocol}" for protocol in ports.secure))
        ),
        "log.dirs": str(log_directory(data_directory)),
        "node.id": str(BROKER_ID),
    }


def _write(path: Path, properties: Mapping[str, str]) -> Path:
    path.touch(mode=0o600)  # it may hold passwords
    path.write_text("".join(_line(name, value) for name, value in properties.items()), encoding="utf-8")
    return path


def _line(name: str, value: str) -> str:
    if "\n" in name + value:
        raise DevkitError(f"property {name!r} = {value!r} has a line break")
    return f"{name}={value}\n".replace("\\", "\\\\")


def _property(path: Path, name: str) -> str | None:
    """Return a property that a file has, None when it has none, or is not there."""
    try:
        match = re.search(rf"^{re.escape(name)}=(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    except FileNotFoundError:
        return None
    return match[1] if match else None


def _previous_ports(data_directory: Path) -> dict[str, int]:
    listeners = _property(data_directory / PROPERTIES_NAME, "listeners") or ""
    return {name: int(port) for name, port in re.findall(r"(\w+)://[^:,]+:(\d+)", listeners)}


def _any_free_port(taken: Collection[int]) -> int:
    """Pick a port below the range from which the kernel takes ports for outgoing connections.

    In that range a client that tries again and again to reach a killed broker may be given the broker's own port,
    connect to itself, and keep the broker from coming back.
    """
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    highest = max(first_outgoing, LOWEST_PORT + PORT_ATTEMPTS) - 1
    for _ in range(PORT_ATTEMPTS):
        port = random.SystemRandom().randint(LOWEST_PORT, highest)
        if port not in taken and _is_free(port):
            return port
    raise DevkitError(f"no free port found on {HOST} between {LOWEST_PORT} and {highest}")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the broker does: TIME_WAIT is no obstacle
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
