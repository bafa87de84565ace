"""Three real brokers, each also a controller of the quorum and with an address of its own."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from airflow_provider_exactlyonce.devkit import guard
from airflow_provider_exactlyonce.devkit.configuration import DEFAULTS, LOGGING_OPTIONS, log_directory
from airflow_provider_exactlyonce.devkit.launch import launch, log_path, log_tail, open_log
from airflow_provider_exactlyonce.devkit.process import ProcessIdentity
from airflow_provider_exactlyonce.devkit.storage import format_storage
from airflow_provider_exactlyonce.jars.cache import broker_jars
from airflow_provider_exactlyonce.jars.java import java_command
from tests.integration.brokers import disks
from tests.integration.brokers.network import Network
from tests.waiting import eventually

NODES = (1, 2, 3)
PORTS = (9092, 9093)
#: With this, and what the JVM needs besides, a broker takes some 300 MB.
HEAP_MEGABYTES = 160
STOP_SECONDS = 60.0
ASK_SECONDS = 3.0

#: Everything three times, two of which must have it. When a broker counts as dead is Kafka's own setting.
SETTINGS: Mapping[str, str] = {
    **DEFAULTS,
    "broker.session.timeout.ms": "9000",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}


@dataclass(frozen=True)
class _Running:
    supervisor: subprocess.Popen[bytes] | None
    process: ProcessIdentity


class BrokerCluster:
    """Brokers 1, 2 and 3. Use it as a context manager: at its end nothing of it runs, and no namespace is left.

    :param folder: for their data and logs
    :param network: where they are; by default each in a namespace of its own
    :param ports: of each, for clients and for controllers
    :param jvm_options: more of them
    :param disk_megabytes: of a disk for each, None if their data is in the folder; needs root
    :param around: of each node, words before the command that starts it
    """

    def __init__(
        self,
        folder: Path,
        network: Network | None = None,
        ports: tuple[int, int] = PORTS,
        jvm_options: Sequence[str] = (),
        disk_megabytes: int | None = None,
        around: Mapping[int, Sequence[str]] | None = None,
    ) -> None:
        self._folder = folder
        self._network = network or Network(NODES)
        self._port, self._controllers_port = ports
        self._jvm_options = jvm_options
        self._disk_megabytes = disk_megabytes
        self._around = around or {}
        self._class_path = ":".join(map(str, broker_jars()))
        self._running: dict[int, _Running] = {}

    def __enter__(self) -> BrokerCluster:
        self._network.make()
        try:
            identifier: str | None = None
            if self._disk_megabytes is not None:
                disks.unmount_all()
            for node in NODES:
                identifier = self._format(node, identifier)
            for node in NODES:
                self.start(node)
            self.wait_until_whole()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in tuple(self._running):
            self.kill(node)
        if self._disk_megabytes is not None:
            disks.unmount_all()
        self._network.remove()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, in order."""
        return ",".join(f"{self._network.address(node)}:{self._port}" for node in NODES)

    def pids(self) -> dict[int, int]:
        """Return {node: process id} of the brokers that were started and not ended."""
        return {node: running.process.pid for node, running in dict(self._running).items()}

    def data(self, node: int) -> Path:
        """Return the folder of a broker's data and logs."""
        return self._folder / f"broker-{node}"

    def start(self, node: int) -> None:
        """Start a broker that does not run; it may take a while until it is one of the cluster's."""
        data = self.data(node)
        with open_log(log_path(data)) as log:
            supervisor, process = launch(
                [
                    *self._network.command(node),
                    *self._around.get(node, ()),
                    *java_command(self._class_path, HEAP_MEGABYTES, *LOGGING_OPTIONS, *self._jvm_options),
                    *("kafka.Kafka", str(self._properties(node))),
                ],
                data,
                log,
                guard.SUPERVISE,
            )
        self._running[node] = _Running(supervisor, process)

    def kill(self, node: int) -> None:
        """End a broker with SIGKILL, also a frozen one."""
        self._end(node, signal.SIGKILL)

    def stop(self, node: int) -> None:
        """End a broker in order: it hands over what it leads first."""
        self._end(node, signal.SIGTERM)

    def freeze(self, node: int) -> None:
        """Stop a broker's process; its connections stay open."""
        self._running[node].process.send(signal.SIGSTOP)

    def thaw(self, node: int) -> None:
        """Let a frozen broker go on, as if no time had passed."""
        self._running[node].process.send(signal.SIGCONT)

    def cut_off(self, node: int) -> None:
        """Let no packet through between a broker and anybody else."""
        self._network.cut_off(node)

    def narrow(self, node: int, bytes_per_second: int, queue_bytes: int) -> None:
        """Let little through to and from a broker: packets are late, and lost where the queue is full."""
        self._network.narrow(node, bytes_per_second, queue_bytes)

    def dropped(self, node: int) -> int:
        """Return how many packets of a broker were lost since it was narrowed."""
        return self._network.dropped(node)

    def fill_disk(self, node: int) -> None:
        """Leave a broker, which has a disk of its own, no byte free."""
        disks.fill(log_directory(self.data(node)))

    def is_alive(self, node: int) -> bool:
        """Whether a broker has not ended by itself."""
        return self._running[node].process.is_alive()

    def heal(self) -> None:
        """Bring everything back: links, frozen processes, brokers that don't run; wait until all replicas are there."""
        for node in NODES:
            self._network.heal(node)
            disks.free(log_directory(self.data(node)))
            if node in self._running and self.is_alive(node):
                self.thaw(node)
            else:
                if node in self._running:  # it has ended by itself
                    self.kill(node)
                self.start(node)
        self.wait_until_whole()

    def leader(self, topic: str, partition: int) -> int:
        """Return which broker leads a partition, -1 for none."""
        return self.metadata(topic).topics[topic].partitions[partition].leader

    def coordinator(self, transactional_id: str) -> int:
        """Return which broker coordinates a transactional id: the leader of the partition that the id hashes to."""
        state = self.metadata("__transaction_state").topics["__transaction_state"]
        return state.partitions[abs(_java_hash(transactional_id)) % len(state.partitions)].leader

    def controller(self) -> int:
        """Return the active controller: the newest leader of the quorum that any node has written down."""
        return max(self._quorum(node) for node in NODES)[1]

    def metadata(self, topic: str | None = None) -> ClusterMetadata:
        """Return what the active controller's broker knows: the others, such as one that was frozen, may lag behind."""

        def asked() -> ClusterMetadata | None:
            controller = self.controller()
            return None if controller == -1 else self._metadata_of(controller, topic)

        return eventually(asked, lambda: f"the active controller answers; {self._logs()}")

    def wait_until_whole(self) -> None:
        """Wait until every broker answers and every partition has all its replicas in sync."""

        def whole() -> bool:
            if not all(self._metadata_of(node) for node in NODES):  # a killed one is listed as before for a while
                return False
            metadata = self.metadata()
            partitions = [partition for topic in metadata.topics.values() for partition in topic.partitions.values()]
            return len(metadata.brokers) == len(NODES) and all(
                partition.leader != -1 and len(partition.isrs) == len(partition.replicas) for partition in partitions
            )

        eventually(whole, lambda: f"all brokers and replicas are there; {self._logs()}", poll_seconds=0.3)

    def _metadata_of(self, node: int, topic: str | None = None) -> ClusterMetadata | None:
        """Ask one broker, by a new client that knows of no other; None when it does not answer."""
        servers = f"{self._network.address(node)}:{self._port}"
        try:
            admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
            return admin.list_topics(*([topic] if topic else []), timeout=ASK_SECONDS)
        except KafkaException:
            return None

    def _format(self, node: int, identifier: str | None) -> str:
        data = self.data(node)
        log_path(data).parent.mkdir(parents=True)
        if self._disk_megabytes is not None:
            log_directory(data).mkdir()
            disks.mount(log_directory(data), self._disk_megabytes)
        with open_log(log_path(data)) as log:
            return format_storage(data, self._class_path, self._properties(node), {}, log, identifier)

    def _properties(self, node: int) -> Path:
        clients = f"PLAINTEXT://{self._network.address(node)}:{self._port}"
        voters = (f"{controller}@{self._network.address(controller)}:{self._controllers_port}" for controller in NODES)
        settings = {
            **SETTINGS,
            "advertised.listeners": clients,
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": ",".join(voters),
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": f"{clients},CONTROLLER://{self._network.address(node)}:{self._controllers_port}",
            "log.dirs": str(log_directory(self.data(node))),
            "node.id": str(node),
            "process.roles": "broker,controller",
        }
        path = self.data(node) / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return path

    def _end(self, node: int, number: signal.Signals) -> None:
        running = self._running.pop(node)
        running.process.send(number)
        if not running.process.wait_until_gone(STOP_SECONDS):
            running.process.send(signal.SIGKILL)
            raise AssertionError(f"broker {node} did not end within {STOP_SECONDS:.0f} s; {self._logs()}")
        if running.supervisor is not None:
            running.supervisor.wait(STOP_SECONDS)

    def _quorum(self, node: int) -> tuple[int, int]:
        """Return the newest epoch of the quorum that a node has written down, and its leader, -1 for none yet."""
        path = log_directory(self.data(node)) / "__cluster_metadata-0" / "quorum-state"
        try:
            state = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):  # before the first election
            return -1, -1
        return state["leaderEpoch"], state["leaderId"]

    def _logs(self) -> str:
        return "\n".join(f"broker {node}:\n{log_tail(log_path(self.data(node)))}" for node in NODES)


def _java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
