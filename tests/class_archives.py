"""Classes in a file that a JVM maps when it starts: a driver needs 12 s of CPU instead of 19, a broker 3 instead of 7.

Nothing breaks without the file, nor with one that another Java made or that is of other jars: the JVM ignores it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import uuid
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker

FOLDER = Path(__file__).parents[1] / ".exactlyonce"
SPARK = FOLDER / f"classes-of-spark-{version('pyspark')}.jsa"
BROKER = FOLDER / "classes-of-the-broker.jsa"

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"

#: For a driver's JVM.
SPARK_OPTIONS = f"{SHORT_LIVED} -XX:SharedArchiveFile={SPARK} -Xshare:auto {QUIET}"
#: For a broker's JVM, in the environment's KAFKA_OPTS.
BROKER_OPTIONS = f"{SHORT_LIVED} -XX:SharedArchiveFile={BROKER} -Xshare:auto {QUIET}"


def ensure_spark(config: Mapping[str, str]) -> None:
    """Make Spark's archive if this checkout has none; of several processes one does, and the others wait for it.

    :param config: of the broker on which the driver gets topics of its own
    """
    _ensure(SPARK, lambda beside: _let_a_driver_write(beside, config), wait=True)


def ensure_broker() -> None:
    """Make the broker's archive if this checkout has none; of several processes one does, the others start without."""
    _ensure(BROKER, _let_a_broker_write, wait=False)


def _ensure(archive: Path, write: Callable[[Path], None], *, wait: bool) -> None:
    archive.parent.mkdir(exist_ok=True)
    with archive.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return
        if not archive.exists():
            beside = archive.with_suffix(f".{os.getpid()}")
            write(beside)
            beside.touch()  # a Java that can't write an archive is not asked again
            beside.replace(archive)


def _let_a_driver_write(archive: Path, config: Mapping[str, str]) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    from tests.integration.streaming.harness import World

    name = f"classes-{uuid.uuid4().hex[:6]}"
    topics = f"{name}.in", f"{name}.out"
    admin = AdminClient(dict(config))
    for made in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        made.result(30)
    with tempfile.TemporaryDirectory() as folder:
        world = World(config, name, *topics, Path(folder, "home"))
        try:
            world.send(10)
            driver = world.start(conf={"spark.driver.extraJavaOptions": _writing(archive)})
            assert driver.wait() == 0, driver.output()[-3000:]
        finally:
            world.end()


def _let_a_broker_write(archive: Path) -> None:
    options = os.environ["KAFKA_OPTS"]
    os.environ["KAFKA_OPTS"] = _writing(archive)
    try:
        with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder)) as broker:
            broker.stop(timeout_seconds=60)
    finally:
        os.environ["KAFKA_OPTS"] = options


def _writing(archive: Path) -> str:
    return f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={archive} {QUIET}"
