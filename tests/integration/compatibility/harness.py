"""Runs one version to a savepoint and another from it, both on files, and keeps what Spark did."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from airflow_provider_exactlyonce.checkpoint import lineages
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.manifest import Savepoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.checkpoint.versions import CompatibilityReport
from airflow_provider_exactlyonce.control.home import Lineage
from airflow_provider_exactlyonce.streaming.job.compatibility_check import check_compatibility
from tests.integration.compatibility.versions import Spec
from tests.unit.checkpoint import crafted

#: Seconds of event time: the second round is so much later that windows of the first close.
ROUNDS = (1_000, 1_060)
ROWS = 12
COLUMNS = {
    "id": pyarrow.int64(),
    "k": pyarrow.string(),
    "j": pyarrow.string(),
    "t": pyarrow.int64(),
    "u": pyarrow.int64(),
    "a": pyarrow.int64(),
    "b": pyarrow.int64(),
    "c": pyarrow.int64(),
}


def rows(number: int) -> list[dict[str, Any]]:
    """Return a round of input: ``k`` and ``j`` share values, ``u`` is behind ``t``, every fourth row is late."""
    return [
        {
            "id": number * ROWS + row,
            "k": ("x", "y", "zz")[row % 3],
            "j": ("y", "x", "w")[row % 3],
            "t": ROUNDS[0 if row % 4 == 3 else number] + row,
            "u": row,
            "a": row + 1,
            "b": 100 + row,
            "c": None,
        }
        for row in range(ROWS)
    ]


@dataclass(frozen=True)
class Ran:
    """What became of a start.

    :param rows: what it wrote
    :param error: why Spark refused it, None when it ran
    """

    rows: list[Row]
    error: str | None


@dataclass
class Saved:
    """A savepoint of an old version.

    :param input: where its sources' files are
    """

    savepoint: Savepoint
    input: Path


@dataclass
class Bench:
    """Makes savepoints of old versions, once each, and starts new versions from copies of them."""

    spark: SparkSession
    folder: Path
    saved: dict[int, Saved] = field(default_factory=dict)

    @property
    def savepoints(self) -> Savepoints:
        return Savepoints(self.folder / "savepoints")

    def save(self, old: Spec) -> Saved:
        """Run an old version over the first round, take a savepoint, and make the second round available."""
        if id(old) not in self.saved:
            place = self.folder / f"old-{len(self.saved)}"
            self._write(place / "input", 0)
            ran = self._run(old, place / "input", place / "checkpoint")
            assert ran.error is None, ran.error
            checkpoint = Checkpoint(place / "checkpoint")
            batch = checkpoint.newest_commit()
            assert batch is not None
            offsets = checkpoint.offsets(batch)
            assert offsets is not None
            record = replace(crafted.record(batch), pipeline=old.name, offsets=offsets.text)
            job = old.pipeline()
            with settings(self.spark, old.conf):
                description = job.describe(self.spark, job.planned(self.spark))
            savepoint = self.savepoints.take(checkpoint, batch, record, description)
            self._write(place / "input", 1)
            # Two versions of a job are two files; here they are one.
            self.saved[id(old)] = Saved(replace(savepoint, job_hash="of an older file"), place / "input")
        return self.saved[id(old)]

    def check(self, saved: Saved, new: Spec) -> CompatibilityReport:
        checkpoint = self.savepoints.checkpoint(saved.savepoint.id).path
        return check_compatibility(new.pipeline(), saved.savepoint, checkpoint, self.spark, new.conf)

    def start(self, saved: Saved, new: Spec) -> Ran:
        """Start a new version over the second round, from a copy of the savepoint."""
        place, savepoint = self.folder / f"new-{uuid.uuid4().hex[:8]}", saved.savepoint
        checkpoint = self.savepoints.checkpoint(savepoint.id).path
        lineages.make(place, checkpoint, savepoint.files, Lineage(id=str(uuid.uuid4())))
        return self._run(new, saved.input, place / "checkpoint")

    def whole(self, saved: Saved, new: Spec) -> list[Row]:
        """Return what a version gives of both rounds at once."""
        frames = [self.spark.read.schema(new.schema).parquet(str(saved.input / topic)) for topic in new.topics]
        return (new.in_one_batch or new.function)(*frames).collect()

    def _run(self, spec: Spec, folder: Path, checkpoint: Path) -> Ran:
        collected: list[Row] = []
        with settings(self.spark, spec.conf):
            frames = [self.spark.readStream.schema(spec.schema).parquet(str(folder / topic)) for topic in spec.topics]
            try:
                query = (
                    spec.function(*frames)
                    .writeStream.outputMode(spec.mode)
                    .option("checkpointLocation", str(checkpoint))
                    .foreachBatch(lambda batch, _: collected.extend(batch.collect()))
                    .trigger(availableNow=True)
                    .start()
                )
                query.awaitTermination()
            except PySparkException as error:
                return Ran(collected, str(error))
        return Ran(collected, None)

    @staticmethod
    def _write(folder: Path, number: int) -> None:
        schema = pyarrow.schema(list(COLUMNS.items()))
        for topic in ("events", "others"):
            (folder / topic).mkdir(parents=True, exist_ok=True)
            table = pyarrow.Table.from_pylist(rows(number), schema=schema)
            pyarrow.parquet.write_table(table, folder / topic / f"{number}.parquet")


@contextmanager
def settings(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Set some settings for a while."""
    before = {name: spark.conf.get(name, None) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    yield
    for name, former in before.items():
        spark.conf.unset(name) if former is None else spark.conf.set(name, former)
