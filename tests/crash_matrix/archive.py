"""Spark's classes in one file that its JVM maps when it starts: a driver's start takes 12 s of CPU instead of 19."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from tests.crash_matrix.cases import LONG_TIMEOUT_SECONDS
from tests.crash_matrix.pipeline import Pipeline
from tests.crash_matrix.shapes import UPDATE


def use(path: Path) -> str:
    """Return the JVM option that uses the archive; one that does not fit is ignored by the JVM."""
    return f"-XX:SharedArchiveFile={path} -Xshare:auto"


def make(path: Path, folder: Path) -> None:
    """Write the archive: one driver lives and ends in order, which takes most of a minute."""
    beside = path.with_suffix(".new")
    beside.unlink(missing_ok=True)
    with EmbeddedBroker(folder / "broker") as broker:
        config = {"bootstrap.servers": broker.bootstrap_servers}
        dump = f"-XX:ArchiveClassesAtExit={beside} -Xlog:cds=off -Xlog:cds+dynamic=off"
        pipeline = Pipeline(config=config, name="archive", shape=UPDATE, folder=folder / "p", jvm_options=dump)
        try:
            pipeline.start(LONG_TIMEOUT_SECONDS)
            pipeline.send(10)
            pipeline.settle(0)
            pipeline.stop()
        finally:
            pipeline.close()
    if beside.exists():
        beside.replace(path)
