"""JVMs of tests start soon and live shortly: a broker needs 3 s of CPU instead of 7, from an archive of its classes.

Nothing breaks without the archive, nor with one that another Java made or that is of other jars: the JVM ignores it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker

BROKER = Path(__file__).parents[1] / ".exactlyonce" / "classes-of-the-broker.jsa"

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"

#: For a broker's JVM, in the environment's KAFKA_OPTS.
BROKER_OPTIONS = f"{SHORT_LIVED} -XX:SharedArchiveFile={BROKER} -Xshare:auto {QUIET}"


def ensure_broker() -> None:
    """Make the broker's archive if this checkout has none; of several processes one does, the others start without."""
    BROKER.parent.mkdir(exist_ok=True)
    with BROKER.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if not BROKER.exists():
            beside = BROKER.with_suffix(f".{os.getpid()}")
            _let_a_broker_write(beside)
            beside.touch()  # a Java that can't write an archive is not asked again
            beside.replace(BROKER)


def _let_a_broker_write(archive: Path) -> None:
    options = os.environ["KAFKA_OPTS"]
    os.environ["KAFKA_OPTS"] = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={archive} {QUIET}"
    try:
        with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder)) as broker:
            broker.stop(timeout_seconds=60)
    finally:
        os.environ["KAFKA_OPTS"] = options
