"""The sink's readable records against the ledger's commits, a window of commits at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.audit.findings import Findings
from airflow_provider_exactlyonce.audit.partition_check import PartitionCheck, RangeFound, Stray
from airflow_provider_exactlyonce.audit.topics import SinkTopic
from airflow_provider_exactlyonce.kafka.batch_producers import BatchProducers, producer_of
from airflow_provider_exactlyonce.kafka.digest import record_digest
from airflow_provider_exactlyonce.kafka.range_reader import RangeReader, position_of
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition, by_partition
from airflow_provider_exactlyonce.ledger.records import CommitRecord

if TYPE_CHECKING:
    from confluent_kafka import Message

_REMEMBERED_RANGES: Final = 200_000


@dataclass
class Totals:
    """The totals of the rows read so far."""

    rows: int = 0
    ranges: int = 0
    expired_ranges: int = 0
    compacted_ranges: int = 0
    foreign_rows: int = 0


@dataclass(frozen=True, kw_only=True)
class JudgedRecords:
    """The records of a sink that are judged, and the limits.

    :param topics: the sink's topics that can be judged; ranges in others are left out
    :param limits: {(topic, partition): offset} up to which everything is decided
    :param producer_ids: that the ledger's commits name
    :param backfill_ids: producer ids of the pipeline's backfills, whose records are judged by their own ledger
    :param allow_foreign: records of other producers are passed over
    """

    topics: Mapping[str, SinkTopic]
    limits: Mapping[TopicPartition, int]
    producer_ids: frozenset[int]
    backfill_ids: frozenset[int]
    allow_foreign: bool


@dataclass(kw_only=True)
class SinkCheck:
    """Reads the sink's topics once, forwards.

    :param findings: get each violation
    :param log_starts: asks where topics' logs begin now
    """

    reader: RangeReader
    producers: BatchProducers
    judged: JudgedRecords
    findings: Findings
    log_starts: Callable[[Iterable[str]], Mapping[TopicPartition, int]]
    advanced: Callable[[Totals], None]
    totals: Totals = field(default_factory=Totals)

    def __post_init__(self) -> None:
        self._partitions: dict[TopicPartition, PartitionCheck] = {}
        self._remembered: OrderedDict[tuple[int, int], tuple[int, TopicPartition]] = OrderedDict()

    def begin_at(self, partition: TopicPartition, offset: int) -> None:
        """Judge a partition from an offset on; otherwise its first range is where it begins."""
        self._partitions[partition] = PartitionCheck(offset)

    def window(self, commits: Sequence[CommitRecord]) -> None:
        """Judge some commits and the readable records before and between them."""
        partition_ranges: dict[TopicPartition, list[RangeFound]] = {}
        by_commit: dict[int, list[tuple[TopicPartition, RangeFound]]] = {}
        for record in commits:
            for partition, written in by_partition(record.sink).items():
                if partition[0] not in self.judged.topics or written.last >= self.judged.limits.get(partition, 0):
                    continue  # said already: the topic is gone, or an open transaction holds it back
                found_range = RangeFound(record.commit, written)
                partition_ranges.setdefault(partition, []).append(found_range)
                by_commit.setdefault(record.commit, []).append((partition, found_range))
                self._remember(found_range, partition)
        for partition, found_ranges in partition_ranges.items():
            check = self._partitions.setdefault(partition, PartitionCheck(found_ranges[0].expected.first))
            check.open(found_ranges, found_ranges[-1].expected.last + 1)
        self._read(list(partition_ranges))
        starts = self.log_starts({topic for topic, _ in partition_ranges})
        committed = {record.commit: record.committed for record in commits}
        for commit, commit_ranges in by_commit.items():
            self._judge(commit, committed[commit], commit_ranges, starts)

    def rest(self) -> None:
        """Judge the readable records after the last commit."""
        partitions = [partition for partition in self._partitions if partition in self.judged.limits]
        for partition in partitions:
            self._partitions[partition].open([], self.judged.limits[partition])
        self._read(partitions)

    def _read(self, partitions: list[TopicPartition]) -> None:
        checks = {partition: self._partitions[partition] for partition in partitions}
        spans = {partition: (check.next_offset, check.end) for partition, check in checks.items()}
        for number, message in enumerate(self.reader.read(spans), start=1):
            partition, offset = position_of(message)
            check = checks[partition]
            if self.judged.backfill_ids and self.producers.is_of(self.judged.backfill_ids, partition, offset):
                check.skip(offset)
            elif self.judged.allow_foreign and not self.producers.is_of(self.judged.producer_ids, partition, offset):
                self.totals.foreign_rows += 1
                check.skip(offset)
            else:
                check.add(offset, _digest(message))
            if number % 65_536 == 0:
                self.advanced(self.totals)
        for partition, check in checks.items():
            check.finish()
            for stray in check.strays:
                self._report_stray(partition, stray)
        self.advanced(self.totals)

    def _judge(
        self,
        commit: int,
        committed: int,
        ranges: list[tuple[TopicPartition, RangeFound]],
        starts: Mapping[TopicPartition, int],
    ) -> None:
        found_ranges = []
        for partition, found_range in ranges:
            topic = self.judged.topics[partition[0]]
            self.totals.ranges += 1
            if found_range.expected.first < starts[partition] and topic.may_have_expired(committed):
                self.totals.expired_ranges += 1
            elif found_range.rows < found_range.expected.rows and topic.is_compacted:
                self.totals.compacted_ranges += 1
            else:
                found_ranges.append((partition, found_range))
        self.totals.rows += sum(found_range.rows for _, found_range in found_ranges)
        incomplete = next((entry for entry in found_ranges if entry[1].rows < entry[1].expected.rows), None)
        if incomplete is not None:
            partition, found_range = incomplete
            is_lost = all(found_range.rows == 0 for _, found_range in found_ranges)
            rows = sum(found_range.expected.rows for _, found_range in found_ranges)
            readable = sum(min(found_range.rows, found_range.expected.rows) for _, found_range in found_ranges)
            message = (
                f"the batch is {'lost' if is_lost else 'torn'}: {readable} of its {rows} rows are readable; "
                f"{self._what_is_at(partition, found_range.missing, starts[partition])}"
            )
            self.findings.add("I1" if is_lost else "I3", commit, message, partition, found_range.missing)
        for partition, found_range in found_ranges:
            expected = found_range.expected
            if found_range.rows > expected.rows:
                message = (
                    f"{found_range.rows} rows are readable between {expected.first} and {expected.last}, "
                    f"{expected.rows} are its own"
                )
                self.findings.add("I1", commit, message, partition, expected.first)
            elif found_range.rows == expected.rows and found_range.digest != expected.digest:
                message = (
                    f"the digest of its {found_range.rows} rows is {found_range.digest:016x}, the ledger says "
                    f"{expected.digest:016x}"
                )
                self.findings.add("I7", commit, message, partition, expected.first)

    def _what_is_at(self, partition: TopicPartition, offset: int, start: int) -> str:
        if offset < start:
            return f"the log begins at {start}: they were deleted"
        batch = self.producers.batch_at(partition, offset)
        if batch is None:
            return "there is no record at that offset"
        if batch.is_control:
            return "a transaction's marker is at that offset"
        return f"the record there is of an aborted transaction of {producer_of(batch)}"

    def _report_stray(self, topic_partition: TopicPartition, stray: Stray) -> None:
        batch = self.producers.batch_at(topic_partition, stray.first)
        owner = "this pipeline's" if batch and batch.producer_id in self.judged.producer_ids else "not this pipeline's"
        rows = f"{stray.rows} readable {'row' if stray.rows == 1 else 'rows'} up to offset {stray.last}"
        writer = f"written by {producer_of(batch)}, {owner}"
        remembered = self._remembered.get((stray.rows, stray.digest))
        if remembered is not None:
            commit, (topic, partition) = remembered
            message = f"doubled batch: {rows} repeat what commit {commit} wrote to {topic}-{partition}"
            self.findings.add("I1", commit, f"{message}; {writer}", topic_partition, stray.first)
        else:
            self.findings.add("I2", stray.after, f"{rows} are in no commit; {writer}", topic_partition, stray.first)

    def _remember(self, found_range: RangeFound, partition: TopicPartition) -> None:
        self._remembered[found_range.expected.rows, found_range.expected.digest] = found_range.commit, partition
        if len(self._remembered) > _REMEMBERED_RANGES:
            self._remembered.popitem(last=False)


def _digest(message: Message) -> int:
    headers: Any = message.headers()
    value: Any = message.value()
    key: Any = message.key()
    return record_digest(key, value, headers)
