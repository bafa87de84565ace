"""Spark's classes in one file that its JVM maps when it starts: a driver's start takes 12 s of CPU instead of 19."""

from __future__ import annotations

import fcntl
import os
import tempfile
import uuid
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

ARCHIVE = Path(__file__).parents[1] / ".exactlyonce" / f"classes-of-spark-{version('pyspark')}.jsa"

#: For a driver's JVM. An archive that is absent, or made by another Java or of other jars, is ignored.
JVM_OPTION = f"-XX:SharedArchiveFile={ARCHIVE} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"


def ensure(config: Mapping[str, str]) -> None:
    """Make the archive if this checkout has none; of several processes one does, and the others wait for it.

    :param config: of the broker on which the driver gets topics of its own
    """
    ARCHIVE.parent.mkdir(exist_ok=True)
    with ARCHIVE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ARCHIVE.exists():
            _make(config)


def _make(config: Mapping[str, str]) -> None:
    """Let a driver live and end in order, with the archive as its legacy."""
    from confluent_kafka.admin import AdminClient, NewTopic

    from tests.integration.streaming.harness import CONF, World

    name = f"classes-{uuid.uuid4().hex[:6]}"
    topics = f"{name}.in", f"{name}.out"
    admin = AdminClient(dict(config))
    for made in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        made.result(30)
    beside = ARCHIVE.with_suffix(f".{os.getpid()}")
    option = "spark.driver.extraJavaOptions"
    dump = CONF[option].replace(JVM_OPTION, f"-XX:ArchiveClassesAtExit={beside} -Xlog:cds=off -Xlog:cds+dynamic=off")
    with tempfile.TemporaryDirectory() as folder:
        world = World(config, name, *topics, Path(folder, "home"))
        try:
            world.send(10)
            driver = world.start(conf={option: dump})
            assert driver.wait() == 0, driver.output()[-3000:]
        finally:
            world.end()
    beside.touch()  # a Java that can't write an archive is not asked again
    beside.replace(ARCHIVE)
