"""A real Kafka broker of one node, KRaft, on the loopback interface, for the demo, the tests and a first look."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, Final, Self

from airflow_provider_exactlyonce.devkit import guard
from airflow_provider_exactlyonce.devkit.configuration import (
    HOST,
    LOGGING_OPTIONS,
    choose_ports,
    cluster_id,
    write_properties,
)
from airflow_provider_exactlyonce.devkit.errors import DevkitError
from airflow_provider_exactlyonce.devkit.jars import broker_jars
from airflow_provider_exactlyonce.devkit.java import java_executable
from airflow_provider_exactlyonce.devkit.probe import why_not_ready
from airflow_provider_exactlyonce.devkit.process import ProcessIdentity
from airflow_provider_exactlyonce.devkit.state import BrokerState

START_TIMEOUT_SECONDS: Final = 90.0
STOP_TIMEOUT_SECONDS: Final = 30.0
KILL_TIMEOUT_SECONDS: Final = 10.0
PROBE_INTERVAL_SECONDS: Final = 0.1
FORMAT_HEAP_MEGABYTES: Final = 128
LOG_TAIL_LINES: Final = 20
LOG_ROTATION_BYTES: Final = 16 * 1024 * 1024
NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})


class EmbeddedBroker:
    """One broker on one data directory; start, stop or kill it as often as needed, it keeps data and port.

    As a context manager, or started by itself, it lives no longer than the process that started it, however that one
    ends. With ``detached`` it stays until somebody stops it.

    :param data_directory: made if absent; holds ``kafka/`` (topics), ``logs/server.log`` and ``server.properties``
    :param port: where clients connect, 0 for the one used here before or any free one
    :param properties: broker settings beside and above the devkit's own
    :param heap_megabytes: the JVM's heap
    :param detached: leave the broker running when this process ends
    """

    def __init__(
        self,
        data_directory: Path,
        *,
        port: int = 0,
        properties: Mapping[str, str] = NO_PROPERTIES,
        heap_megabytes: int = 512,
        detached: bool = False,
    ) -> None:
        self.data_directory = data_directory.absolute()
        self._port = port
        self._properties = dict(properties)
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """What clients connect to; the same after every restart."""
        return self.state.bootstrap_servers

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
        """What the broker writes, over all starts."""
        return self.data_directory / "logs" / "server.log"

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
            class_path = ":".join(map(str, broker_jars()))
            ports = choose_ports(self.data_directory, self._port)
            properties_file = write_properties(self.data_directory, ports, self._properties)
            with self._open_log() as log:
                storage_id = cluster_id(self.data_directory) or self._format(class_path, properties_file, log)
                process = self._spawn(self._command(class_path, properties_file), log)
            self._port = ports.client
            self._state = BrokerState(process=process, port=ports.client, cluster_id=storage_id)
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

    def _open_log(self) -> IO[bytes]:
        if self.log_file.exists() and self.log_file.stat().st_size > LOG_ROTATION_BYTES:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))
        return open(self.log_file, "ab")

    def _java(self, heap_megabytes: int, class_path: str) -> list[str]:
        return [
            str(java_executable()),
            f"-Xmx{heap_megabytes}m",
            "-XX:+ExitOnOutOfMemoryError",
            "-Djava.awt.headless=true",
            *LOGGING_OPTIONS,
            *("-cp", class_path),
        ]

    def _command(self, class_path: str, properties_file: Path) -> list[str]:
        return [*self._java(self._heap_megabytes, class_path), "kafka.Kafka", str(properties_file)]

    def _format(self, class_path: str, properties_file: Path, log: IO[bytes]) -> str:
        """Prepare the storage; may be repeated after a crash in the middle of it."""
        identifier = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = [
            *self._java(FORMAT_HEAP_MEGABYTES, class_path),
            *("-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool", "format"),
            f"--cluster-id={identifier}",  # in one word, because the identifier may begin with a dash
            *("--config", str(properties_file), "--ignore-formatted"),
        ]
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
        )
        if result.returncode != 0:
            raise DevkitError(f"the storage in {self.data_directory} can't be formatted:\n{self._log_tail()}")
        return identifier

    def _spawn(self, command: list[str], log: IO[bytes]) -> ProcessIdentity:
        mode = guard.DETACH if self._detached else guard.SUPERVISE
        reading, writing = os.pipe()
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, mode, str(os.getpid()), str(writing), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.data_directory,
                pass_fds=[writing],
                start_new_session=True,  # Ctrl-C is for the owner, who then stops the broker in order
            )
        finally:
            os.close(writing)
        with open(reading, encoding="ascii") as report:
            answer = report.read().strip()
        process = ProcessIdentity.of(int(answer)) if answer else None
        if self._detached:
            self._reap()
        if process is None:
            self._reap()
            raise DevkitError(f"the broker ended as soon as it was started:\n{self._log_tail()}")
        return process

    def _wait_until_ready(self, deadline: float, timeout_seconds: float) -> None:
        while True:
            reason = why_not_ready(HOST, self.state.port, self.state.cluster_id)
            if not self.is_running:
                raise DevkitError(f"the broker ended while it started; the end of {self.log_file}:\n{self._log_tail()}")
            if reason is None:
                return
            if time.monotonic() > deadline:
                raise DevkitError(
                    f"the broker was not ready within {timeout_seconds:g} s: {reason};"
                    f" the end of {self.log_file}:\n{self._log_tail()}"
                )
            time.sleep(PROBE_INTERVAL_SECONDS)

    def _reap(self) -> None:
        if self._guard is not None:
            self._guard.wait(KILL_TIMEOUT_SECONDS)
            self._guard = None

    def _log_tail(self) -> str:
        return "\n".join(self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:])


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
