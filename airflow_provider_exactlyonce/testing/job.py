"""Runs a pipeline's own function as a real streaming query over batches that a test gives."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.checkpoint.state import SHUFFLE_PARTITIONS
from airflow_provider_exactlyonce.exceptions import DivergedError, ExactlyOnceError
from airflow_provider_exactlyonce.streaming.analysis import determinism
from airflow_provider_exactlyonce.streaming.job.definition import PipelineDefinition
from airflow_provider_exactlyonce.streaming.job.source import Source
from airflow_provider_exactlyonce.streaming.spark import errors
from airflow_provider_exactlyonce.testing import records
from airflow_provider_exactlyonce.testing.records import Given

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: By what name a batch has the Kafka sink's records.
KAFKA: Final = "kafka"
_FILE_AGES_SECONDS: Final = 1.0  # files are read in the order of their times

#: The rows of each source in one batch, by the source's name; of a pipeline with one source, its rows alone.
BatchInput = Sequence[Given] | Mapping[str, Sequence[Given]]


@dataclass(frozen=True, kw_only=True)
class OutputRecord:
    """One record that the Kafka sink would write.

    :param timestamp: milliseconds since the epoch, None for the time of writing
    """

    topic: str | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = None
    timestamp: int | None = None

    @property
    def json(self) -> Any:
        """The value, decoded; numbers with a fraction are decimals."""
        return None if self.value is None else json.loads(self.value, parse_float=Decimal)


@dataclass(frozen=True, kw_only=True)
class JobBatch:
    """The output of one micro-batch.

    :param number: Spark's batch id; a batch without data, which a watermark may ask for at the end, has one, too
    :param records: the records for the Kafka sink
    :param rows: {sink: its rows, as dictionaries} of the other sinks
    :param bad: what would go to the topic for bad records
    """

    number: int
    records: Sequence[OutputRecord] = ()
    rows: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    bad: Sequence[OutputRecord] = ()

    @property
    def values(self) -> list[Any]:
        """The Kafka sink's values, decoded."""
        return [record.json for record in self.records]

    @property
    def ordered(self) -> tuple[object, ...]:
        """The same whatever the order of the rows is."""
        rows = {name: sorted(map(repr, rows)) for name, rows in self.rows.items()}
        return self.number, sorted(map(repr, self.records)), rows, sorted(map(repr, self.bad))


def run_job(
    pipeline: PipelineDefinition,
    batches: Sequence[BatchInput],
    spark: SparkSession,
    *,
    deterministic: bool = False,
    timeout_seconds: float = 120.0,
) -> list[JobBatch]:
    """Run a pipeline's function over batches, in order, with state from each to the next.

    The rows for each sink are returned, nothing is written. Each source's topic has one partition. Where a source reads
    several topics, a record without a topic is of the first.

    :param batches: at least one
    :param deterministic: run everything a second time, with other partitions, and compare
    :raises BadRecordError: when a record does not fit its source's schema, and bad records stop the pipeline
    :raises DivergedError: when ``deterministic`` is asked for, and a batch gives other rows
    :raises ExactlyOnceError: as the job itself would be refused or stopped
    """
    batches_by_source = [_by_source(pipeline, batch) for batch in batches]
    first = _Query(pipeline, batches_by_source, spark, timeout_seconds).run(check=deterministic)
    if deterministic:
        partitions = str(spark.conf.get(SHUFFLE_PARTITIONS))
        spark.conf.set(SHUFFLE_PARTITIONS, str(int(partitions) + 1))
        try:
            second = _Query(pipeline, batches_by_source, spark, timeout_seconds).run()
        finally:
            spark.conf.set(SHUFFLE_PARTITIONS, partitions)
        _compare(pipeline.name, first, second)
    return first


class _Query:
    """One run of the query; :meth:`run` is called once."""

    def __init__(
        self,
        pipeline: PipelineDefinition,
        batches: Sequence[Mapping[str, Sequence[Given]]],
        spark: SparkSession,
        timeout_seconds: float,
    ) -> None:
        self._pipeline: Final = pipeline
        self._batches: Final = batches
        self._spark: Final = spark
        self._timeout_seconds: Final = timeout_seconds
        self._job_batches: Final[list[JobBatch]] = []
        self._failure: ExactlyOnceError | None = None
        self._diverts: Final = pipeline.sink is not None and pipeline.sink.diverts

    def run(self, *, check: bool = False) -> list[JobBatch]:
        """Run it.

        :param check: look for nondeterministic parts
        """
        with tempfile.TemporaryDirectory(prefix="exactlyonce-job-") as folder:
            frames = {
                name: self._stream(Path(folder) / f"source-{position}", name, source)
                for position, (name, source) in enumerate(self._pipeline.sources.items())
            }
            result = self._pipeline.applied(frames)
            self._pipeline.routes.check(result)
            if check and (unsure := determinism.find(result)):
                raise DivergedError(f"{self._pipeline.name} may give other rows: {'; '.join(unsure)}")
            self._wait(
                result.writeStream.outputMode(self._pipeline.output_mode)
                .option("checkpointLocation", f"{folder}/checkpoint")
                .foreachBatch(lambda frame, number: self._take(Path(folder), frame, number))
                .trigger(availableNow=True)
                .start()
            )
        return self._job_batches

    def _wait(self, query: Any) -> None:
        try:
            ended = query.awaitTermination(self._timeout_seconds)
        except Exception as error:
            raise self._failure or error from error
        finally:
            query.stop()
        if not ended:
            raise ExactlyOnceError(f"{self._pipeline.name} has not ended within {self._timeout_seconds:g} s")

    def _stream(self, folder: Path, name: str, source: Source) -> DataFrame:
        """Write a source's files, one a batch, and return its stream."""
        folder.mkdir()
        offset, began = 0, time.time() - _FILE_AGES_SECONDS * len(self._batches)
        for number, batch in enumerate(self._batches):
            path = folder / _file(number)
            records.write(path, source.topics, offset, batch[name])
            os.utime(path, (began + number * _FILE_AGES_SECONDS,) * 2)
            offset += len(batch[name])
        reader = self._spark.readStream.schema(source.columns).option("maxFilesPerTrigger", 1)
        return source.stream_of(reader.parquet(str(folder)), leave_out_bad=self._diverts)

    def _take(self, folder: Path, frame: DataFrame, number: int) -> None:
        """Keep a batch's output for each sink."""
        persisted = frame.persist()
        try:
            output_records = self._records(persisted) + self._misfits(folder, number)
            sink = self._pipeline.sink
            bad_topic = sink.bad_topic if sink else None
            is_bad = [bad_topic is not None and record.topic == bad_topic for record in output_records]
            self._job_batches.append(
                JobBatch(
                    number=number,
                    records=[record for record, bad in zip(output_records, is_bad, strict=True) if not bad],
                    rows={
                        name: [row.asDict(recursive=True) for row in rows.collect()]
                        for name, rows in self._pipeline.routes.other_rows(persisted).items()
                    },
                    bad=[record for record, bad in zip(output_records, is_bad, strict=True) if bad],
                )
            )
        except Exception as error:  # the query's own error has the plan's text, in which every mark is
            self._failure = error if isinstance(error, ExactlyOnceError) else errors.meaning_of_batch(str(error))
            raise
        finally:
            persisted.unpersist()

    def _records(self, frame: DataFrame) -> list[OutputRecord]:
        from airflow_provider_exactlyonce.streaming.sinks.kafka import columns

        sink = self._pipeline.sink
        if sink is None:
            return []
        return _outputs(columns.encode(sink, self._pipeline.routes.kafka_rows(frame)), sink.topic)

    def _misfits(self, folder: Path, number: int) -> list[OutputRecord]:
        """Return the batch's source records that do not fit, where they go to a topic of their own."""
        if not self._diverts or number >= len(self._batches):
            return []
        misfits, sink = [], self._pipeline.kafka_sink("a topic for bad records")
        for position, source in enumerate(self._pipeline.sources.values()):
            if source.schema is None:
                continue
            path = str(folder / f"source-{position}" / _file(number))
            misfit = source.misfits(self._spark.read.parquet(path))
            misfits += _outputs(misfit, sink.bad_topic) if misfit is not None else []
        return misfits


def _by_source(pipeline: PipelineDefinition, batch: BatchInput) -> Mapping[str, Sequence[Given]]:
    names = list(pipeline.sources)
    if not isinstance(batch, Mapping):
        if len(names) != 1:
            raise ExactlyOnceError(f"{pipeline.name} has the sources {', '.join(names)}: give a batch's rows by them")
        return {names[0]: batch}
    if unknown := batch.keys() - set(names):
        raise ExactlyOnceError(f"{pipeline.name} has no source {min(unknown)!r}, it has {', '.join(names)}")
    return {name: batch.get(name, ()) for name in names}


def _file(number: int) -> str:
    return f"{number:06}.parquet"


def _outputs(frame: DataFrame, topic: str | None) -> list[OutputRecord]:
    """Collect records; bytes travel as hexadecimal digits, which are the same in every setting of Spark's."""
    columns = ["hex(key) AS key", "hex(value) AS value"]
    columns += [name for name in ("topic", "partition", "timestamp") if name in frame.columns]
    if "headers" in frame.columns:
        columns.append("transform(headers, one -> struct(one.key AS key, hex(one.value) AS value)) AS headers")
    return [_output(row.asDict(), topic) for row in frame.selectExpr(*columns).collect()]


def _output(row: Mapping[str, Any], topic: str | None) -> OutputRecord:
    def as_bytes(digits: str | None) -> bytes | None:
        return None if digits is None else bytes.fromhex(digits)

    return OutputRecord(
        topic=row.get("topic", topic),
        key=as_bytes(row["key"]),
        value=as_bytes(row["value"]),
        headers=tuple((header["key"], bytes.fromhex(header["value"])) for header in row.get("headers") or ()),
        partition=row.get("partition"),
        timestamp=row.get("timestamp"),
    )


def _compare(name: str, first: Sequence[JobBatch], second: Sequence[JobBatch]) -> None:
    for batch, repeated in zip(first, second, strict=False):
        if batch.ordered != repeated.ordered:
            raise DivergedError(f"batch {batch.number} of {name} gave {batch}; run again it gave {repeated}")
    if len(first) != len(second):
        raise DivergedError(f"{name} ran in {len(first)} batches, and run again in {len(second)}")
