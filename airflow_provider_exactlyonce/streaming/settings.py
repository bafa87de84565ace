"""Spark settings that the protocol needs, and how a driver is started. Imports no pyspark: both halves read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from airflow_provider_exactlyonce import environment
from airflow_provider_exactlyonce.exceptions import RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.kafka import config

#: Environment variables through which a supervisor hands a driver what must not be on its command line.
KAFKA_VARIABLE: Final = config.VARIABLE  # client configuration: as JSON, or the brokers
SOURCES_VARIABLE: Final = config.SOURCES_VARIABLE  # the same of sources' own clusters, by connection
POSTGRES_VARIABLE: Final = "EXACTLYONCE_POSTGRES"  # {connection: libpq's parameters} as JSON, or @ and a file with it
STORES_VARIABLE: Final = environment.STORES_VARIABLE  # the same with delta-rs' storage options
REGISTRY_VARIABLE: Final = "EXACTLYONCE_SCHEMA_REGISTRY"  # its client's configuration: as JSON, or the URL
TOKEN_VARIABLE: Final = "EXACTLYONCE_TOKEN"  # start token

#: Where the sequencer listens; for clusters behind firewalls.
SEQUENCER_HOST: Final = "spark.exactlyonce.sequencer.host"
SEQUENCER_BIND_ADDRESS: Final = "spark.exactlyonce.sequencer.bindAddress"
SEQUENCER_PORT: Final = "spark.exactlyonce.sequencer.port"

#: The class with which Spark writes the files of a checkpoint.
FILE_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"

#: How large the Arrow batches for Python workers become.
ARROW_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"

#: Whether a query without state is planned anew while it runs.
ADAPTIVE: Final = "spark.sql.adaptive.streaming.stateless.enabled"

#: One transaction can't absorb a task that runs twice; the batch is attempted again as a whole instead.
REQUIRED: Final[Mapping[str, tuple[str, str]]] = {
    "spark.task.maxFailures": ("1", "a second attempt of a task would write its records twice into one transaction"),
    "spark.stage.maxConsecutiveAttempts": ("1", "a stage that is run again re-runs tasks that have written already"),
    "spark.speculation": ("false", "a speculative copy of a task would write its records twice into one transaction"),
}

#: Set unless the user has set them.
DEFAULTS: Final[Mapping[str, str]] = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    # Spark's own choice for a local path starts a program (chmod, readlink) some five times for each file of a
    # checkpoint, 2 ms of CPU and more each; this one twice, and the one in this package's jar never.
    FILE_MANAGER: ("org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"),
    # Over TCP, Nagle's algorithm and delayed acknowledgements hold a small batch up for 40 ms in every Python worker.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.unix.domain.socket.dir": "/tmp",  # a path has at most 107 bytes, and java.io.tmpdir of YARN is long
    # Of 10 KB records a task's all are one Arrow batch at the default of 64 MB: memory that is touched only once, and a
    # Python worker that waits for the whole of it. A batch took 17 % longer so.
    ARROW_BYTES: "4m",
    ADAPTIVE: "false",  # stages that run before the batch's attempt are not counted, nor attempted again
    "spark.sql.session.timeZone": "UTC",  # timestamps in the output are the same wherever the driver runs
}


def submit_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for spark-submit: the user's, completed by required ones and defaults.

    :param given: the user's Spark settings
    :raises SettingRefusedError: when the user's contradict a required one
    """
    check(given.get, absent_is_refused=False)
    required = {name: value for name, (value, _) in REQUIRED.items()}
    return {**DEFAULTS, **given, **required}


def program_of(job: str) -> list[str]:
    """Return the program that spark-submit runs for a job here: it distinguishes a mistake in the job from a failure.

    :param job: the job's file; one that Spark has to fetch first, and a program of this package, run by themselves
    """
    streaming_folder = Path(__file__).parent
    if urlsplit(job).scheme or streaming_folder.parent in Path(job).absolute().parents:
        return [job]
    return [str(streaming_folder / "driver" / "job_main.py"), job]


def pairs(items: Sequence[str]) -> dict[str, str]:
    """Read settings as they stand on a command line.

    :param items: ``NAME=VALUE`` each
    :raises RefusedError: when one is not
    """
    settings = {}
    for item in items:
        name, separator, value = item.partition("=")
        if not separator:
            raise RefusedError(f"--conf {item!r} is not NAME=VALUE")
        settings[name] = value
    return settings


def check(get: Callable[[str], str | None], *, absent_is_refused: bool = True) -> None:
    """Check a session's settings.

    :param get: returns a setting's value, None when it is not set
    :raises SettingRefusedError: naming the setting, its value and the value it must have
    """
    for name, (value, reason) in REQUIRED.items():
        actual = get(name)
        if (actual is None and absent_is_refused) or (actual is not None and actual.strip().lower() != value):
            raise SettingRefusedError(name, actual, value, reason)


@dataclass(frozen=True, kw_only=True)
class SequencerEndpoint:
    """Where the sequencer listens, and where executors reach it.

    :param host: address that executors connect to
    :param bind_address: address of the driver's host to listen on
    :param port: 0 for any free one
    """

    host: str
    bind_address: str
    port: int = 0


def sequencer_endpoint(get: Callable[[str], str | None], master: str) -> SequencerEndpoint:
    """Read where the sequencer listens from a session's settings.

    :param get: returns a setting's value, None when it is not set
    :param master: Spark's master; with a local one everything is on the loopback unless it is said otherwise
    :raises SettingRefusedError: when the port isn't one, or no host is known
    """
    text = get(SEQUENCER_PORT) or "0"
    if not text.isdecimal() or int(text) > 65_535:
        raise SettingRefusedError(SEQUENCER_PORT, text, "0 to 65535", "0 takes any free port of the driver's host")
    host = get(SEQUENCER_HOST)
    if host is None and master.startswith("local"):
        return SequencerEndpoint(
            host="127.0.0.1", bind_address=get(SEQUENCER_BIND_ADDRESS) or "127.0.0.1", port=int(text)
        )
    host = host or get("spark.driver.host")
    if not host:
        raise SettingRefusedError(SEQUENCER_HOST, host, "the driver's address", "executors have to reach the sequencer")
    bind_address = get(SEQUENCER_BIND_ADDRESS) or get("spark.driver.bindAddress") or host
    return SequencerEndpoint(host=host, bind_address=bind_address, port=int(text))
