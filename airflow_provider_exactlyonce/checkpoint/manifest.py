"""A savepoint's manifest: its pipeline, commit and version, and every file that it holds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.checkpoint import plan as plans
from airflow_provider_exactlyonce.checkpoint.job import JobDescription
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint, parse_offsets
from airflow_provider_exactlyonce.checkpoint.plan import QueryPlan
from airflow_provider_exactlyonce.checkpoint.state import StateDirectory, StatefulOperator
from airflow_provider_exactlyonce.exceptions import InvariantError, RefusedError
from airflow_provider_exactlyonce.ledger.records import CommitRecord

SCHEMA: Final = 2
#: Schema 1 lacks the plan.
READABLE: Final = (1, SCHEMA)


@dataclass(frozen=True, kw_only=True)
class Savepoint:
    """One savepoint's manifest.

    :param id: ``<commit>-<hexadecimal digits>``, and of one that was asked for ``-<request>``
    :param commit: the ledger's commit whose state it holds
    :param lineage: Spark's query id of the checkpoint that it was taken of
    :param batch: Spark's batch id in that lineage
    :param version: content hash of the job that committed the batch
    :param run: the run that committed the batch
    :param source: {topic: {partition: end}}, end exclusive
    :param sink: {topic: {partition: last offset}} that the batch wrote
    :param watermark: the batch's event-time watermark, milliseconds since the epoch, 0 for none
    :param batch_timestamp: Spark's batch timestamp, milliseconds since the epoch
    :param state_backend: ``hashmap``, ``rocksdb``, ``rocksdb+changelog`` or another provider's class name; None without
        state
    :param state_format: Spark's checkpoint format of the state, 1 or 2
    :param spark_version: of the job that committed the batch, None when it left no description
    :param job_hash: SHA-256 of that job's file, None as above
    :param output_mode: of that job, None as above
    :param source_schemas: {topic: what that job declared for its values}, empty as above
    :param sinks: topics that it writes to, of those that are known before the first row
    :param result_schema: of the rows that go to the sink, as Spark's JSON, None as above
    :param size: bytes of all files
    :param files: {path below ``checkpoint/``: (bytes, checksum)}
    :param created: milliseconds since the epoch
    :param pinned: it stays, whatever retention says
    :param plan: what that job computed, None when it is not known
    """

    id: str
    label: str | None
    pipeline: str
    commit: int
    lineage: str
    batch: int
    version: str
    run: int
    source: Mapping[str, Mapping[int, int]]
    sink: Mapping[str, Mapping[int, int]]
    watermark: int
    batch_timestamp: int
    operators: tuple[StatefulOperator, ...]
    state_backend: str | None
    state_format: int
    spark_version: str | None
    job_hash: str | None
    output_mode: str | None
    source_schemas: Mapping[str, str | None]
    sinks: tuple[str, ...]
    result_schema: str | None
    size: int
    files: Mapping[str, tuple[int, str]]
    created: int
    pinned: bool = False
    plan: QueryPlan | None = None

    @property
    def job(self) -> JobDescription | None:
        """The description of the job that committed the batch, None when there is none."""
        if self.spark_version is None or self.output_mode is None or self.result_schema is None:
            return None
        return JobDescription(
            version=self.version,
            job_hash=self.job_hash,
            spark_version=self.spark_version,
            output_mode=self.output_mode,
            sources=self.source_schemas,
            sinks=self.sinks,
            result_schema=self.result_schema,
            plan=self.plan,
        )


def describe(
    saved: Checkpoint,
    batch: int,
    files: Mapping[str, tuple[int, str]],
    record: CommitRecord,
    job: JobDescription | None,
) -> Savepoint:
    """Return the manifest of files that are in place, but for id and label."""
    offsets, commit = saved.offsets(batch), saved.commit(batch)
    if offsets is None or commit is None:
        raise InvariantError(f"{saved.path} lacks batch {batch}, whose files were just copied")
    if not offsets.same_sources(parse_offsets(record.offsets)):
        raise RefusedError(
            f"batch {batch} of the checkpoint ends at {offsets.kafka_ends()}, and commit {record.commit} in the ledger "
            f"at {parse_offsets(record.offsets).kafka_ends()}: they are not of one pipeline, or the checkpoint was "
            "rolled back"
        )
    operators = tuple(StateDirectory(saved.path).operators(batch))
    return Savepoint(
        id="",
        label=None,
        pipeline=record.pipeline,
        commit=record.commit,
        lineage=str(saved.query_id()),
        batch=batch,
        version=record.version,
        run=record.run,
        source=offsets.kafka_ends(),
        sink={
            topic: {number: sink_range.last for number, sink_range in ranges.items()}
            for topic, ranges in record.sink.items()
        },
        watermark=record.watermark,
        batch_timestamp=record.batch_timestamp,
        operators=operators,
        state_backend=backend_of(offsets.conf, files) if operators else None,
        state_format=2 if commit.state_ids is not None else 1,
        spark_version=job.spark_version if job else None,
        job_hash=job.job_hash if job else None,
        output_mode=job.output_mode if job else None,
        source_schemas=job.sources if job else {},
        sinks=job.sinks if job else (),
        result_schema=job.result_schema if job else None,
        plan=job.plan if job else None,
        size=sum(size for size, _ in files.values()),
        files=files,
        created=int(time.time() * 1000),
    )


def backend_of(conf: Mapping[str, str], paths: Iterable[str]) -> str:
    """Return the name of the state backend.

    :param conf: the checkpoint's settings
    :param paths: its files
    """
    provider = conf.get("spark.sql.streaming.stateStore.providerClass", "")
    if provider.endswith(".RocksDBStateStoreProvider"):
        return "rocksdb+changelog" if any(path.endswith(".changelog") for path in paths) else "rocksdb"
    return "hashmap" if provider.endswith(".HDFSBackedStateStoreProvider") else provider


def encode(savepoint: Savepoint) -> dict[str, Any]:
    """Return a manifest's JSON form."""
    return {
        "schema": SCHEMA,
        **vars(savepoint),
        "operators": [asdict(operator) for operator in savepoint.operators],
        "plan": plans.encode(savepoint.plan) if savepoint.plan else None,
    }


def decode(body: Mapping[str, Any]) -> Savepoint:
    """Read a manifest.

    :raises RefusedError: when it is of another schema
    """
    what = f"the manifest of savepoint {body.get('id')}"
    codec.check_schema(body, what, READABLE)
    return codec.load(Savepoint, {**body, "plan": plans.decode(body.get("plan"))}, what)
