"""What all tests share: one broker for the session, topics on it, and the proof that nothing is left running."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import psutil
import pytest

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from demo.processes import adopt_orphans
from tests import class_archives
from tests.apicurio import registry_server
from tests.hadoop_cluster import hadoop
from tests.kubernetes_cluster import kubernetes
from tests.mariadb import mariadb
from tests.postgres import database, postgres
from tests.scheduling import pytest_collection_modifyitems, pytest_xdist_make_scheduler
from tests.shared_jvm import SharedJvm

# Before anything imports Airflow, which would make a home of its own where the user's is.
_AIRFLOW_HOME = tempfile.mkdtemp(prefix="exactlyonce-airflow-")
os.environ["AIRFLOW_HOME"] = _AIRFLOW_HOME
os.environ.setdefault("KAFKA_OPTS", class_archives.BROKER_OPTIONS)
# Read when gcsfs is imported; see storage/gcs_environment.py, which the tests' servers do without.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

# What tests write is in memory where that has room: homes, databases and tables wait for a disk all the time.
_MEMORY = Path("/dev/shm")
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

__all__ = ["database", "hadoop", "kubernetes", "mariadb", "postgres", "registry_server"]  # fixtures
__all__ += ["pytest_collection_modifyitems", "pytest_xdist_make_scheduler"]  # hooks

GRACE_SECONDS = 15.0

MakeTopic = Callable[..., str]


def descendants() -> list[psutil.Process]:
    """Find what this process started, and what that started, and is still there."""
    processes = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


def command_line(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid}: {' '.join(process.cmdline())[:300]}"
    return str(process.pid)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Do not look for garbage among what stays: a third of what it costs to collect five thousand tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    """Remove Airflow's home after the last test."""
    shutil.rmtree(_AIRFLOW_HOME, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Fail the session if a process that it started outlives it; set up first, so checked last.

    Orphans become this process's children, so that none is missed: not one in a session of its own, nor one that hides
    its environment behind a title, as Airflow's workers do.
    """
    adopt_orphans()
    yield
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := descendants()) and time.monotonic() < deadline:
        time.sleep(0.2)
    lines = [command_line(process) for process in left]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert not left, f"processes were left running: {lines}"


@pytest.fixture(scope="module", autouse=True)
def orphans_are_reaped() -> Iterator[None]:
    """Ask adopted processes for their exit codes once a file is done: every search of /proc walks through the dead."""
    yield
    dead = {child.pid for child in psutil.Process().children()} - {process.pid for process in descendants()}
    if dead:
        for pid in dead - {popen.pid for popen in gc.get_objects() if issubclass(type(popen), subprocess.Popen)}:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Give the session's broker; a test that stops or kills it starts its own instead."""
    class_archives.ensure_broker()
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def kafka_config(broker: EmbeddedBroker) -> dict[str, str]:
    """Give what every confluent-kafka client of the session's broker is configured with."""
    return {"bootstrap.servers": broker.bootstrap_servers}


@pytest.fixture(scope="session")
def jvm() -> Iterator[None]:
    """Make sessions and drivers that run in this process share one JVM."""
    from tests.integration.spark_session import one_jvm

    with one_jvm():
        yield


@pytest.fixture(scope="session")
def shared_jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedJvm]:
    """Give what runs the drivers that no test kills, one after the other."""
    jvm = SharedJvm(tmp_path_factory.mktemp("shared-jvm") / "output.log", class_archives.SHORT_LIVED)
    yield jvm
    jvm.end()


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
