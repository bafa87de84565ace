"""Prepare the broker's storage for a start: format it, or settle it after a kill.

Why a kill needs settling. The metadata of a killed broker say that it lives and leads its partitions. A broker that
starts on them acts as that leader, loads the transactions whose markers are due, and tries to write them until the
controller notices that the old session is over and takes the partitions' leader away. In that moment Kafka 4.2 and 4.3
(KAFKA-20734) take a partition without a leader for a deleted one and give its marker up: the records of an aborted
transaction become visible with the next commit of the same producer, and those of a committed one hang. So the
controller is started alone first and fences the killed broker. The start proper then finds no leader to act as, and
loads nothing before it has been given the partitions again.
"""

from __future__ import annotations

import base64
import signal
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

from airflow_provider_exactlyonce.devkit import guard
from airflow_provider_exactlyonce.devkit.configuration import (
    BROKER_ID,
    LOGGING_OPTIONS,
    Ports,
    log_directory,
    write_fencing_properties,
)
from airflow_provider_exactlyonce.devkit.errors import DevkitError
from airflow_provider_exactlyonce.devkit.launch import GUARD_TIMEOUT_SECONDS, launch, log_path, log_tail
from airflow_provider_exactlyonce.devkit.metadata_log import is_unfenced
from airflow_provider_exactlyonce.jars.java import java_command
from airflow_provider_exactlyonce.polling import poll_until

HEAP_MEGABYTES: Final = 128
QUICK_START: Final = "-XX:TieredStopAtLevel=1"
FENCING_TIMEOUT_SECONDS: Final = 60.0
STOP_TIMEOUT_SECONDS: Final = 10.0
POLL_INTERVAL_SECONDS: Final = 0.1


def format_storage(
    data_directory: Path,
    class_path: str,
    properties_file: Path,
    features: Mapping[str, int],
    log: IO[bytes],
    cluster_id: str | None = None,
) -> str:
    """Prepare an empty storage and return its cluster id; may be repeated after a crash in the middle of it.

    :param features: levels other than the release's own
    :param cluster_id: of the cluster whose other brokers have their storage already, None for a new one
    :raises DevkitError: when the tool refuses, with the end of its output
    """
    identifier = cluster_id or base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    command = [
        *java_command(class_path, HEAP_MEGABYTES, QUICK_START, *LOGGING_OPTIONS),
        *("kafka.tools.StorageTool", "format", "--config", str(properties_file), "--ignore-formatted"),
        f"--cluster-id={identifier}",  # in one word, because the identifier may begin with a dash
        *(f"--feature={name}={level}" for name, level in features.items()),
    ]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
    if result.returncode != 0:
        raise DevkitError(f"the storage in {data_directory} can't be formatted:\n{log_tail(log_path(data_directory))}")
    return identifier


def is_taken_for_alive(data_directory: Path) -> bool:
    """Tell whether the controller would take the broker, which isn't running, for a living one."""
    return is_unfenced(log_directory(data_directory), BROKER_ID)


def fence_killed_broker(data_directory: Path, class_path: str, ports: Ports, log: IO[bytes]) -> None:
    """Run the controller alone until it has fenced the killed broker. May be repeated.

    :raises DevkitError: when it doesn't come to that; nothing is left running
    """
    command = [
        *java_command(class_path, HEAP_MEGABYTES, QUICK_START, *LOGGING_OPTIONS),
        *("kafka.Kafka", str(write_fencing_properties(data_directory, ports))),
    ]
    supervisor, controller = launch(command, data_directory, log, guard.SUPERVISE)
    try:
        poll_until(
            lambda: not (controller.is_alive() and is_taken_for_alive(data_directory)),
            seconds=FENCING_TIMEOUT_SECONDS,
            poll_seconds=POLL_INTERVAL_SECONDS,
        )
        if is_taken_for_alive(data_directory):
            raise DevkitError(
                f"the broker that was killed on {data_directory} could not be fenced within"
                f" {FENCING_TIMEOUT_SECONDS:g} s; the end of the log:\n{log_tail(log_path(data_directory))}"
            )
    finally:
        controller.send(signal.SIGTERM)
        if not controller.wait_until_gone(STOP_TIMEOUT_SECONDS):
            controller.send(signal.SIGKILL)
        if supervisor is not None:
            supervisor.wait(GUARD_TIMEOUT_SECONDS)
