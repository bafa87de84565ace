"""A real Kafka broker of one node, KRaft, on the loopback interface, for the demo, the tests and a first look."""

from __future__ import annotations

import contextlib
import fcntl
import operator
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final, Self

from airflow_provider_exactlyonce.devkit import guard
from airflow_provider_exactlyonce.devkit.configuration import (
    HOST,
    LOGGING_OPTIONS,
    Ports,
    choose_ports,
    cluster_id,
    write_properties,
)
from airflow_provider_exactlyonce.devkit.errors import DevkitError
from airflow_provider_exactlyonce.devkit.launch import launch, log_path, log_tail, open_log
from airflow_provider_exactlyonce.devkit.probe import why_not_ready
from airflow_provider_exactlyonce.devkit.state import BrokerState
from airflow_provider_exactlyonce.devkit.storage import fence_killed_broker, format_storage, is_taken_for_alive
from airflow_provider_exactlyonce.jars.cache import broker_jars
from airflow_provider_exactlyonce.jars.java import java_command
from airflow_provider_exactlyonce.polling import poll_until

START_TIMEOUT_SECONDS: Final = 90.0
STOP_TIMEOUT_SECONDS: Final = 30.0
KILL_TIMEOUT_SECONDS: Final = 10.0
PROBE_INTERVAL_SECONDS: Final = 0.1


class EmbeddedBroker:
    """One broker on one data directory; start, stop or kill it as often as needed, it keeps data and port.

    As a context manager, or started by itself, it lives no longer than the process that started it, however that
    process ends. With ``detached`` it stays until it is stopped.

    :param data_directory: made if absent; holds ``kafka/`` (topics), ``logs/server.log`` and ``server.properties``
    :param port: where clients connect, 0 for the one used here before or any free one
    :param properties: broker settings beside and above the devkit's own
    :param protocols: security protocols that get a listener of their own beside the plain one; what they need (keys,
        users, an authorizer) belongs to ``properties``
    :param features: levels of Kafka's features other than this release's own, such as ``{"transaction.version": 0}``;
        they count when the data directory is empty
    :param heap_megabytes: the JVM's heap
    :param detached: leave the broker running when this process ends
    """

    def __init__(
        self,
        data_directory: Path,
        *,
        port: int = 0,
        properties: Mapping[str, str] | None = None,
        protocols: Collection[str] = (),
        features: Mapping[str, int] | None = None,
        heap_megabytes: int = 512,
        detached: bool = False,
    ) -> None:
        self.data_directory = data_directory.absolute()
        self._port = port
        self._properties = dict(properties or {})
        self._protocols = tuple(protocols)
        self._features = dict(features or {})
        self._secure_ports: Mapping[str, int] = {}
        self._heap_megabytes = heap_megabytes
        self._detached = detached
        self._guard: subprocess.Popen[bytes] | None = None
        self._state: BrokerState | None = None

    def __repr__(self) -> str:
        state = f"pid {self.pid}, {self.bootstrap_servers}" if self.is_running else "not running"
        return f"<EmbeddedBroker {self.data_directory}: {state}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def state(self) -> BrokerState:
        """The process and the port of the last start, also after it ended.

        :raises DevkitError: before the first start
        """
        if self._state is None:
            raise DevkitError(f"the broker on {self.data_directory} was not started")
        return self._state

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients; the same after every restart."""
        return self.state.bootstrap_servers

    def secure_servers(self, protocol: str) -> str:
        """Return the address for clients of a secure listener; the same after every restart.

        :param protocol: one of ``protocols``
        """
        return f"{HOST}:{self._secure_ports[protocol]}"

    @property
    def pid(self) -> int:
        """The JVM's process id."""
        return self.state.process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process of the last start still lives."""
        return self._state is not None and self._state.process.is_alive()

    @property
    def log_file(self) -> Path:
        """The broker's log, over all starts."""
        return log_path(self.data_directory)

    def start(self, timeout_seconds: float = START_TIMEOUT_SECONDS) -> None:
        """Start and wait until clients can work with it. If it raises, nothing is left running.

        :raises DevkitError: when a broker runs on this data already, or it isn't ready in time; with the end of its log
        """
        deadline = time.monotonic() + timeout_seconds
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self._starting():
            if other := BrokerState.load_living(self.data_directory):
                raise DevkitError(
                    f"a broker runs on {self.data_directory} already: pid {other.process.pid},"
                    f" {other.bootstrap_servers}; `exactlyonce broker stop --data {self.data_directory}` ends it"
                )
            self._state = self._launch(choose_ports(self.data_directory, self._port, self._protocols))
            self._port = self._state.port
            try:
                self._state.save(self.data_directory)
                self._wait_until_ready(deadline, timeout_seconds)
            except BaseException:
                self.kill()
                BrokerState.remove(self.data_directory)
                raise

    def stop(self, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
        """End the broker in order, by force when that takes too long. Harmless when it has ended already."""
        if self._state is not None:
            end_broker(self.data_directory, self._state, timeout_seconds)
            self._reap()

    def kill(self) -> None:
        """End the broker with SIGKILL, as a crash would; data and state file stay as they were at that moment."""
        self.state.process.send(signal.SIGKILL)
        if not self.state.process.wait_until_gone(KILL_TIMEOUT_SECONDS):
            raise DevkitError(f"process {self.pid} is still there {KILL_TIMEOUT_SECONDS} s after SIGKILL")
        self._reap()

    @contextlib.contextmanager
    def _starting(self) -> Iterator[None]:
        """Let one process at a time start a broker on this data."""
        with open(self.data_directory / "lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _launch(self, ports: Ports) -> BrokerState:
        """Bring the storage into order, then start the broker on it."""
        data, class_path = self.data_directory, ":".join(map(str, broker_jars()))
        properties_file = write_properties(data, ports, self._properties)
        self._secure_ports = ports.secure
        with open_log(self.log_file) as log:
            storage_id = cluster_id(data)
            if storage_id is None:
                storage_id = format_storage(data, class_path, properties_file, self._features, log)
            elif is_taken_for_alive(data):
                fence_killed_broker(data, class_path, ports, log)
            command = java_command(class_path, self._heap_megabytes, *LOGGING_OPTIONS)
            mode = guard.DETACH if self._detached else guard.SUPERVISE
            self._guard, process = launch([*command, "kafka.Kafka", str(properties_file)], data, log, mode)
        return BrokerState(process=process, port=ports.client, cluster_id=storage_id)

    def _wait_until_ready(self, deadline: float, timeout_seconds: float) -> None:
        def missing() -> str | None:
            reason = why_not_ready(HOST, self.state.port, self.state.cluster_id)
            if not self.is_running:
                raise DevkitError(
                    f"the broker ended while it started; the end of {self.log_file}:\n{log_tail(self.log_file)}"
                )
            return reason

        left_seconds = deadline - time.monotonic()
        if reason := poll_until(missing, seconds=left_seconds, poll_seconds=PROBE_INTERVAL_SECONDS, done=operator.not_):
            raise DevkitError(
                f"the broker was not ready within {timeout_seconds:g} s: {reason};"
                f" the end of {self.log_file}:\n{log_tail(self.log_file)}"
            )

    def _reap(self) -> None:
        if self._guard is not None:
            self._guard.wait(KILL_TIMEOUT_SECONDS)
            self._guard = None


def end_broker(data_directory: Path, state: BrokerState, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
    """End a broker of this or of another process, and forget it.

    :raises DevkitError: when it survives even SIGKILL
    """
    for number, patience_seconds in ((signal.SIGTERM, timeout_seconds), (signal.SIGKILL, KILL_TIMEOUT_SECONDS)):
        state.process.send(number)
        if state.process.wait_until_gone(patience_seconds):
            BrokerState.remove(data_directory)
            return
    raise DevkitError(f"process {state.process.pid} is still there {KILL_TIMEOUT_SECONDS} s after SIGKILL")
