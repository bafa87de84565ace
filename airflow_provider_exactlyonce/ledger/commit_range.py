"""A span of a ledger's commits, read in their order: the commits that a replay repeats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition, by_partition
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import CommitRecord, SourceRanges
from airflow_provider_exactlyonce.ledger.source_clusters import SourceClusters
from airflow_provider_exactlyonce.ledger.topic_identity import KnownTopic, check_sources, known_sources
from airflow_provider_exactlyonce.tables.positions import distance, is_table, shown

_PAGE_RECORDS: Final = 100


@dataclass(frozen=True, kw_only=True, order=True)
class MissingInput:
    """The first source records of a span that are gone.

    :param start: first offset that is gone
    :param end: the offset after the last one that is gone
    """

    commit: int
    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        if is_table(self.topic):
            return f"{shown(self.topic, self.partition, self.start, self.end)}, of commit {self.commit}"
        return f"{self.topic}-{self.partition}, offsets {self.start} to {self.end - 1}, of commit {self.commit}"


@dataclass(kw_only=True)
class CommitSpan:
    """The totals of a span of commits.

    :param first: its first commit
    :param last: its last commit
    :ivar rows: rows that it wrote
    :ivar records: source records, and versions of tables, that it read
    :ivar seconds: how long its batches took when they were committed
    :ivar versions: (version, first, last) of each part in turn
    :ivar starts: {partition: (offset that it reads from, the commit that reads there first)}
    :ivar ends: {partition: offset after the last that it reads}
    :ivar topics: its sources' topics, as the first commits that name them knew them
    """

    first: int
    last: int
    rows: int = field(init=False, default=0)
    records: int = field(init=False, default=0)
    seconds: float = field(init=False, default=0.0)
    versions: list[tuple[str, int, int]] = field(init=False, default_factory=list)
    starts: dict[TopicPartition, tuple[int, int]] = field(init=False, default_factory=dict)
    ends: dict[TopicPartition, int] = field(init=False, default_factory=dict)
    topics: dict[str, KnownTopic] = field(init=False, default_factory=dict)

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The offsets that it reads from."""
        return {partition: start for partition, (start, _) in self.starts.items()}

    def add(self, record: CommitRecord) -> None:
        """Add the next commit."""
        self.rows += record.rows
        self.seconds += max(0, record.committed - record.started) / 1000
        self.topics = {**known_sources(record), **self.topics}
        previous = self.versions[-1] if self.versions else None
        if previous is not None and previous[0] == record.version:
            self.versions[-1] = (record.version, previous[1], record.commit)
        else:
            self.versions.append((record.version, record.commit, record.commit))
        self.reads(record.commit, record.source)

    def reads(self, commit: int, source: SourceRanges) -> None:
        """Add the input of the next commit."""
        for partition, (start, end) in by_partition(source).items():
            if end > start:
                self.records += distance(partition[0], start, end)
                self.starts.setdefault(partition, (start, commit))
                self.ends[partition] = end

    def missing_input(self, earliest: Mapping[TopicPartition, int]) -> MissingInput | None:
        """Return the first source records that the span reads and that are gone, None when all are there.

        :param earliest: {partition: first offset that is there}; one that it lacks is gone as a whole
        """
        missing_ends = {
            topic_partition: min(end, earliest.get(topic_partition, end)) for topic_partition, end in self.ends.items()
        }
        missing = [
            MissingInput(
                commit=commit,
                topic=topic_partition[0],
                partition=topic_partition[1],
                start=start,
                end=missing_ends[topic_partition],
            )
            for topic_partition, (start, commit) in self.starts.items()
            if missing_ends[topic_partition] > start
        ]
        return min(missing, default=None)


def check_input(clusters: SourceClusters, span: CommitSpan) -> None:
    """Check that everything that a span has read is still there to be read again.

    :param clusters: those that its topics are read from
    :raises RefusedError: naming a source topic that was recreated, or the first source records that are gone
    """
    offsets = clusters.offsets
    earliest: dict[TopicPartition, int] = {}
    existing_topics = offsets.describe(topic for topic, _ in span.starts)  # others are gone as a whole
    for topic, described in existing_topics.items():
        check_sources({topic: described.topic_id}, span.topics)
        earliest |= offsets.starts((topic, partition) for partition in described.partitions)
    missing = span.missing_input(earliest)
    if missing is not None:
        raise RefusedError(
            f"source records that commits {span.first} to {span.last} have to be run again on are gone: first "
            f"{missing}. Restore a newer savepoint, and keep the source's records longer than savepoints"
        )
    for topic_partition, start in span.positions.items():
        clusters.check_files(topic_partition[0], start, span.ends[topic_partition])


class RecordedCommits:
    """The commits ``first`` to ``last`` of one ledger, a page at a time.

    :param reader: not used otherwise meanwhile
    """

    def __init__(self, reader: LedgerReader, first: int, last: int) -> None:
        self._reader: Final = reader
        self.first: Final = first
        self.last: Final = last
        self._page: dict[int, CommitRecord] = {}
        self._next_offset = 0

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()

    def check(self) -> CommitSpan:
        """Read all of them once.

        :raises RefusedError: when one isn't in the ledger any more
        """
        span = CommitSpan(first=self.first, last=self.last)
        expected = self.first
        for _, record in self._commits(0):
            if record.commit != expected:
                break
            span.add(record)
            expected += 1
        if expected <= self.last:
            raise RefusedError(
                f"commit {expected} of pipeline {self._reader.pipeline} is not in its ledger any more, and commits "
                f"{self.first} to {self.last} are to be run again: restore a newer savepoint, and keep more history "
                "with ledger_retention"
            )
        return span

    def get(self, commit: int) -> CommitRecord:
        """Return one of them; quick when they are asked for in rising order.

        :raises RefusedError: when it isn't in the ledger any more
        """
        if self._page and commit < min(self._page):
            self._page, self._next_offset = {}, 0
        while commit not in self._page:
            page = list(islice(self._commits(self._next_offset), _PAGE_RECORDS))
            if not page:
                raise RefusedError(f"commit {commit} of pipeline {self._reader.pipeline} is not in its ledger any more")
            self._next_offset = page[-1][0] + 1
            self._page = {
                **{number: record for number, record in self._page.items() if number >= commit},
                **{record.commit: record for _, record in page},
            }
        return self._page[commit]

    def _commits(self, start_offset: int) -> Iterator[tuple[int, CommitRecord]]:
        for offset, record in self._reader.records(start_offset):
            if isinstance(record, CommitRecord) and record.commit >= self.first:
                if record.commit > self.last:
                    return
                yield offset, record
