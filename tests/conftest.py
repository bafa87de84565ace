"""What all tests share: one broker for the session, topics on it, and the proof that nothing is left running."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.devkit.process import ProcessIdentity

# Before anything imports Airflow, which would make a home of its own where the user's is.
_AIRFLOW_HOME = tempfile.mkdtemp(prefix="exactlyonce-airflow-")
os.environ["AIRFLOW_HOME"] = _AIRFLOW_HOME

# Every process started from here inherits it, whatever sessions, forks and detachments lie between.
SESSION_VARIABLE = "EXACTLYONCE_TEST_SESSION"
GRACE_SECONDS = 15.0

MakeTopic = Callable[..., str]


def processes_of_session(marker: str) -> dict[int, str]:
    """Find what this session started and is still there: command line by process id."""
    own = f"{SESSION_VARIABLE}={marker}".encode()
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if own in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:300]
        except OSError:  # it ended meanwhile, or is another user's
            continue
    return found


def pytest_unconfigure() -> None:
    """Remove Airflow's home after the last test."""
    shutil.rmtree(_AIRFLOW_HOME, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Fail the session if a process that it started outlives it; set up first, so checked last."""
    marker = uuid.uuid4().hex
    os.environ[SESSION_VARIABLE] = marker
    yield
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := processes_of_session(marker)) and time.monotonic() < deadline:
        time.sleep(0.2)
    for pid in left:
        if process := ProcessIdentity.of(pid):
            process.send(signal.SIGKILL)
    del os.environ[SESSION_VARIABLE]
    assert not left, f"processes were left running: {left}"


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Give the session's broker; a test that stops or kills it starts its own instead."""
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def kafka_config(broker: EmbeddedBroker) -> dict[str, str]:
    """Give what every confluent-kafka client of the session's broker is configured with."""
    return {"bootstrap.servers": broker.bootstrap_servers}


@pytest.fixture(scope="session")
def spark_classes(kafka_config: dict[str, str]) -> None:
    """Let drivers start faster, all of this session and of later ones."""
    from tests import spark_classes

    spark_classes.ensure(kafka_config)


@pytest.fixture(scope="session")
def make_topic(kafka_config: dict[str, str]) -> MakeTopic:
    """Give ``make(partitions=4, **{"max.message.bytes": "9"})``, which creates a topic and returns its new name."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient(dict(kafka_config))
    numbers = itertools.count(1)

    def make(partitions: int = 4, **config: str) -> str:
        name = f"test-{next(numbers)}-{uuid.uuid4().hex[:6]}"
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
        admin.create_topics([topic])[name].result(30)
        while admin.list_topics(name, timeout=30).topics[name].error:  # the broker learns of it a little later
            time.sleep(0.01)
        return name

    return make
