"""The fields of the ledger's records, and their JSON form.

The ledger of a pipeline is one compacted topic with one partition. A *commit* record (key ``commit/<number>``) is
written in the transaction of the batch that it describes; a *run* record (key ``run/<number>``, the claim) in one of
its own. Every record repeats where the last commit and the last claim before it are, so that the end of the topic
suffices. Commits of a pipeline's backfills have a ledger of their own, and the kind *backfill*.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition, by_partition
from airflow_provider_exactlyonce.tables import positions

SCHEMA: Final = 2

#: What a ledger topic must accept; a record of 10,000 source and 10,000 sink partitions takes about an eighth of it.
RECORD_BYTES_MAXIMUM: Final = 8 * 1024 * 1024
_HEADROOM_BYTES: Final = 64 * 1024  # for tombstones in the same record batch
_TRANSACTIONAL_ID_PREFIX: Final = "exactlyonce."
LEDGER_PREFIX: Final = "exactlyonce.ledger."
_BACKFILL_SUFFIX: Final = ".backfill"
_COMMIT: Final = "commit"
_BACKFILL: Final = "backfill"
#: What a pipeline's commits give, unless they say that it is less.
EXACTLY_ONCE: Final = "exactly_once"
#: The name of the Kafka sink beside those of the other sinks.
KAFKA: Final = "Kafka"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,180}(\.backfill)?")

#: {topic: {partition: (start, end)}}, end exclusive
SourceRanges = Mapping[str, Mapping[int, tuple[int, int]]]


def check_pipeline_name(name: str) -> str:
    """Return the name.

    :raises RefusedError: when Kafka could not name a topic by it
    """
    if not _NAME.fullmatch(name):
        raise RefusedError(f"pipeline name {name!r}: 1 to 180 letters, digits, '.', '_' or '-' are accepted")
    return name


def ledger_topic(pipeline: str) -> str:
    """Return the name of the pipeline's ledger topic."""
    return f"{LEDGER_PREFIX}{check_pipeline_name(pipeline)}"


def ledgered(topic: str) -> str | None:
    """Return the pipeline of a ledger topic, None for any other topic."""
    name = topic.removeprefix(LEDGER_PREFIX)
    return name if name != topic and _NAME.fullmatch(name) else None


def transactional_id(pipeline: str) -> str:
    """Return the pipeline's transactional.id; it never changes."""
    return f"{_TRANSACTIONAL_ID_PREFIX}{check_pipeline_name(pipeline)}"


def backfill_pipeline(pipeline: str) -> str:
    """Return the name under which a pipeline's backfills have a ledger and a transactional.id of their own."""
    return check_pipeline_name(f"{pipeline}{_BACKFILL_SUFFIX}")


def backfilled(pipeline: str) -> str | None:
    """Return the pipeline of a name of backfills, None for a pipeline's own name."""
    name = pipeline.removesuffix(_BACKFILL_SUFFIX)
    return name if name not in (pipeline, "") else None


def pipeline_of(transactional_id: str) -> str | None:
    """Return the pipeline of a transactional.id, None when it is of no pipeline."""
    name = transactional_id.removeprefix(_TRANSACTIONAL_ID_PREFIX)
    return name if name != transactional_id and _NAME.fullmatch(name) else None


@dataclass(frozen=True, kw_only=True)
class SinkRange:
    """The rows that one batch wrote to one topic-partition.

    :param first: offset of its first record
    :param last: offset of its last record, inclusive
    :param rows: records written
    :param digest: sum modulo 2**64 of the records' xxhash64
    """

    first: int
    last: int
    rows: int
    digest: int


@dataclass(frozen=True, kw_only=True)
class OtherSink:
    """The rows that one batch gave to a sink that is not Kafka.

    :param rows: rows that it was given
    :param digest: sum modulo 2**64 of Spark's xxhash64 over each row
    :param dataset: where they are, see :attr:`airflow_provider_exactlyonce.streaming.sinks.spi.SinkCommitter.dataset`;
        None where that has no name, and in records of 0.1.0
    """

    rows: int
    digest: int
    dataset: tuple[str, str] | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class LateRows:
    """The rows of one batch that a stateful operator of Spark dropped because they were behind its watermark.

    :param operator: its number; its state is in the checkpoint's ``state/<number>``
    :param name: Spark's name of it
    :param rows: rows that would have gone into it. Of an aggregation over another operator with state, groups of them;
        of windows that overlap, a row counts once for each window that was over
    :param watermark: milliseconds since the epoch; a row of this time, or a window that ends then, is late
    """

    operator: int
    name: str
    rows: int
    watermark: int


@dataclass(frozen=True, kw_only=True)
class LedgerPointer:
    """Where the last commit and the last claim before a record are; 0 and -1 stand for none.

    :param oldest: the oldest commit that retention has kept, with the record's own tombstones applied
    """

    commit: int = 0
    commit_offset: int = -1
    run: int = 0
    run_offset: int = -1
    oldest: int = 1


@dataclass(frozen=True, kw_only=True)
class CommitRecord:
    """One committed micro-batch.

    :param commit: pipeline-wide number, 1, 2, 3 … without a gap
    :param lineage: Spark's query id
    :param batch: Spark's batch id
    :param version: content hash of the job that ran it
    :param source: source ranges that went in; of tables the positions of
        :mod:`airflow_provider_exactlyonce.tables.positions`
    :param source_topic_ids: {topic: id}, to notice a recreated topic; of tables their own ids
    :param sink: {topic: {partition: range}} that came out; empty for a batch without rows
    :param offsets: exact text of Spark's ``offsets/<batch>``
    :param watermark: the batch's own event-time watermark, milliseconds since the epoch, 0 for none
    :param batch_timestamp: Spark's batch timestamp, milliseconds since the epoch
    :param rows: records written to Kafka
    :param digest: sum modulo 2**64 of all records' xxhash64
    :param started: when the batch attempt began, milliseconds since the epoch
    :param committed: when the record was written, milliseconds since the epoch
    :param sink_topic_ids: {topic: id} of every topic that it wrote to, to notice a recreated one
    :param earlier_sink_topics: {topic: (id, the newest commit that wrote to it)} of the sink's topics that it did not
        write to; a release before 0.2.0 did not tell them
    :param former_sink_topics: {topic: id} of those that earlier commits wrote to and the job does not name any more
    :param sink_topics_since: the commit from which on the three fields above name every topic that was written to; 0
        when that is not known
    :param bad_records: rows that were diverted to the topic for bad records; in ``sink`` under it, not in ``rows`` or
        ``digest``
    :param reemits_from: of the first commit after a restore that writes again what followed an older commit: that
        commit; its source ranges begin where that one ended
    :param others: {sink: what it was given} of the pipeline's sinks that are not Kafka
    :param backfill: the backfill that wrote it, in the ledger of a pipeline's backfills; None in every other
    :param result: of the last record of a backfill, which ends it and has no rows: what it gave
    :param guarantee: what the pipeline gave from end to end when it was written. With less than exactly once ``sink``
        may be empty: Spark's own sink does not tell where it writes
    :param primary: the sink whose rows stand for the pipeline's: :data:`KAFKA`, or without it the first declared one;
        None in records of releases that did not say
    :param records: source records that the batch has read, bad ones included and each once; None where that is unknown
    :param late: of the operators that have left out rows behind their watermark; None where that is unknown
    :param late_total: rows in ``late`` of this commit and all before it, as far as they are known
    :param late_topic: where they are, None when they were only counted; in ``sink`` under it, not in ``rows`` or
        ``digest``
    :param source_patterns: the expressions by which sources find topics: more of them may match by now
    """

    pipeline: str
    commit: int
    lineage: str
    batch: int
    run: int
    version: str
    source: SourceRanges
    source_topic_ids: Mapping[str, str]
    sink: Mapping[str, Mapping[int, SinkRange]]
    offsets: str
    watermark: int
    batch_timestamp: int
    rows: int
    digest: int
    producer_id: int
    epoch: int
    started: int
    committed: int
    before: LedgerPointer
    sink_topic_ids: Mapping[str, str] = field(default_factory=dict)
    earlier_sink_topics: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    former_sink_topics: Mapping[str, str] = field(default_factory=dict)
    sink_topics_since: int = 0
    bad_records: int = 0
    reemits_from: int | None = None
    others: Mapping[str, OtherSink] = field(default_factory=dict)
    backfill: str | None = None
    result: Mapping[str, Any] | None = None
    guarantee: str = EXACTLY_ONCE
    primary: str | None = None
    records: int | None = None
    late: Sequence[LateRows] | None = None
    late_total: int = 0
    late_topic: str | None = None
    source_patterns: tuple[str, ...] = ()

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """The offsets after the last that the pipeline has read with it."""
        return {partition: end for partition, (_, end) in by_partition(self.source).items()}

    @property
    def lacks_offsets(self) -> bool:
        """Whether it does not tell where its rows are in Kafka."""
        return self.guarantee != EXACTLY_ONCE and not self.sink

    @property
    def rows_by_sink(self) -> dict[str, int]:
        """Rows that each sink was given, the primary one first; diverted ones left out."""
        others = {name: share.rows for name, share in self.others.items()}
        has_kafka = self.primary == KAFKA or (self.primary is None and bool(self.rows or self.sink or not others))
        return {KAFKA: self.rows, **others} if has_kafka else others

    @property
    def primary_rows(self) -> int:
        """Rows that the primary sink was given, diverted ones left out."""
        return next(iter(self.rows_by_sink.values()))

    @property
    def late_rows(self) -> int | None:
        """Rows that all operators together have left out, None where that is unknown."""
        return None if self.late is None else sum(late.rows for late in self.late)

    @property
    def kind(self) -> str:
        """The record's kind in the ledger."""
        return _COMMIT if self.backfill is None else _BACKFILL

    @property
    def key(self) -> bytes:
        """The record's Kafka key."""
        return commit_key(self.commit)


@dataclass(frozen=True, kw_only=True)
class ClaimRecord:
    """The claim of one run.

    :param run: counter, highest seen + 1
    :param token: start token of the driver
    :param home: id of the pipeline's home
    :param home_path: where the home was when the run started
    :param base_commit: the last commit when the run started
    :param claimed: milliseconds since the epoch
    :param guarantee: what the pipeline gives from end to end in this run
    :param lost: {commit: its source ranges} of those whose rows this run found that may be lost; only at most once
    :param plan: of a run of a backfill: what its request meant when it was begun; None in every other ledger
    :param machine: where ``pid`` means its process, as in the lease; empty in a record of release 0.1.0
    :param source_clusters: {topics of a source, as text: (connection, the cluster's id)} of the sources that name a
        connection; all others are read from the pipeline's cluster
    :param source_datasets: {table: (namespace, name)} of the tables that are read, as OpenLineage names what is where
        they are
    """

    kind: ClassVar[str] = "run"

    pipeline: str
    run: int
    host: str
    pid: int
    token: str
    lineage: str
    version: str
    home: str
    home_path: str
    base_commit: int
    claimed: int
    before: LedgerPointer
    parent_savepoint: str | None = None
    guarantee: str = EXACTLY_ONCE
    lost: Mapping[int, SourceRanges] = field(default_factory=dict)
    plan: Mapping[str, Any] | None = None
    machine: str = ""
    source_clusters: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    source_datasets: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def key(self) -> bytes:
        """The record's Kafka key."""
        return f"run/{self.run}".encode()


Record = CommitRecord | ClaimRecord


def commit_key(commit: int) -> bytes:
    """Return the Kafka key of a commit's record."""
    return f"commit/{commit}".encode()


def shown(source: SourceRanges) -> str:
    """Return source ranges for people, end exclusive."""
    return ", ".join(
        positions.shown(topic, partition, start, end)
        for (topic, partition), (start, end) in by_partition(source).items()
        if start < end
    )


def encode(record: Record) -> bytes:
    """Return the record's JSON value. Facts of a partition are lists, so that many partitions fit.

    :raises RefusedError: when no ledger topic accepts a record of that size
    """
    body: dict[str, Any] = {"schema": SCHEMA, "kind": record.kind, **vars(record), "before": vars(record.before)}
    if isinstance(record, ClaimRecord):
        for name in ("source_clusters", "source_datasets"):
            if not body[name]:
                del body[name]
    if isinstance(record, CommitRecord):
        body["digest"] = f"{record.digest:016x}"  # as text: many JSON readers round integers above 2**53
        body["sink"] = {
            topic: {
                partition: (written.first, written.last, written.rows, f"{written.digest:016x}")
                for partition, written in ranges.items()
            }
            for topic, ranges in record.sink.items()
        }
        body["others"] = {
            name: (share.rows, f"{share.digest:016x}", *([share.dataset] if share.dataset else []))
            for name, share in record.others.items()
        }
        if record.late is not None:
            body["late"] = [vars(late) for late in record.late]
    value = json.dumps(body, separators=(",", ":")).encode()
    if len(value) > RECORD_BYTES_MAXIMUM - _HEADROOM_BYTES:
        raise RefusedError(
            f"the ledger record {record.key.decode()} of pipeline {record.pipeline} takes {len(value)} bytes, at most "
            f"{RECORD_BYTES_MAXIMUM - _HEADROOM_BYTES} are accepted: read or write fewer partitions in one pipeline"
        )
    return value


def decode(value: bytes) -> Record:
    """Read a record's value.

    :raises RefusedError: when it is of another schema or no record of ours
    """
    try:
        body: Any = json.loads(value)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise RefusedError(f"{value[:80]!r} is no record of a ledger: something else writes to its topic")
    kind = body.get("kind")
    number = body.get("run" if kind == ClaimRecord.kind else "commit")
    description = f"the ledger record of {kind} {number} of pipeline {body.get('pipeline')}"
    codec.check_schema(body, description, (SCHEMA,))
    if kind == ClaimRecord.kind:
        return codec.load(ClaimRecord, body, description)
    if kind not in (_COMMIT, _BACKFILL):
        raise RefusedError(
            f"ledger record of kind {kind!r}; this release reads 'commit', 'backfill' and 'run'. Upgrade it"
        )
    try:
        named = _named(body)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise RefusedError(f"{description} can't be read: {error!r}") from None
    return codec.load(CommitRecord, named, description)


def _named(body: Mapping[str, Any]) -> dict[str, Any]:
    """Give the values that are in lists their names again; a newer release may have added some at the end."""
    return {
        **body,
        "digest": int(body["digest"], 16),
        "sink": {
            topic: {
                partition: {"first": first, "last": last, "rows": rows, "digest": int(digest, 16)}
                for partition, (first, last, rows, digest, *_) in ranges.items()
            }
            for topic, ranges in body["sink"].items()
        },
        "others": {
            name: {"rows": rows, "digest": int(digest, 16), "dataset": later[0] if later else None}
            for name, (rows, digest, *later) in body.get("others", {}).items()
        },
    }
