"""JVMs of tests start soon and live shortly: a broker needs 3 s of CPU instead of 7, from an archive of its classes.

Nothing breaks without the archive, nor with one that another Java made or that is of other jars: the JVM ignores it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker

BROKER = Path(__file__).parents[1] / ".exactlyonce" / "classes-of-the-broker.jsa"

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"

#: For a broker's JVM, in the environment's KAFKA_OPTS.
BROKER_OPTIONS = f"{SHORT_LIVED} -XX:SharedArchiveFile={BROKER} -Xshare:auto {QUIET}"


def ensure_broker() -> None:
    """Make the broker's archive if this checkout has none."""
    with _first_of_many(BROKER.with_suffix(".lock")) as is_first:
        if is_first and not BROKER.exists():
            beside = BROKER.with_suffix(f".{os.getpid()}")
            _let_a_broker_write(beside)
            beside.touch()  # a Java that can't write an archive is not asked again
            beside.replace(BROKER)


@contextmanager
def _first_of_many(file: Path) -> Iterator[bool]:
    """Say whether this process is to make an archive: of several one is, the others start without one meanwhile."""
    file.parent.mkdir(exist_ok=True)
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _let_a_broker_write(archive: Path) -> None:
    options = os.environ["KAFKA_OPTS"]
    os.environ["KAFKA_OPTS"] = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={archive} {QUIET}"
    try:
        with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder)) as broker:
            broker.stop(timeout_seconds=60)
    finally:
        os.environ["KAFKA_OPTS"] = options
