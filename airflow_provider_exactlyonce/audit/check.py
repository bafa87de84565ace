"""The audit of a pipeline: the ledger first, then the readable rows of its sink; then the same of its backfills.

The judged range is fixed at the start: the sink's ends are read first and the ledger's end after them, when everything
up to there is decided. A pipeline may run meanwhile; its later commits are not judged.

A backfill's records, in the sink itself or elsewhere, are recognised by their producer: the ledger of the backfills
names it. They are judged by that ledger alone, and rows that the pipeline and a backfill both have are not doubled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.audit import topics
from airflow_provider_exactlyonce.audit.findings import Findings, Report
from airflow_provider_exactlyonce.audit.ledger_check import LedgerCheck
from airflow_provider_exactlyonce.audit.sink_check import JudgedRecords, SinkCheck, Totals
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka.batch_producers import BatchProducers, producer_of
from airflow_provider_exactlyonce.kafka.range_reader import RangeReader
from airflow_provider_exactlyonce.kafka.reach import unanswered
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition
from airflow_provider_exactlyonce.ledger.home import never_started
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import CommitRecord, backfill_pipeline
from airflow_provider_exactlyonce.polling import poll_until

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.kafka.wire import WireClient

_WINDOW_COMMITS: Final = 5_000
_WINDOW_RANGES: Final = 50_000
_POLL_SECONDS: Final = 0.1
_TIMEOUT_SECONDS: Final = 60.0
_LEDGER_STEP: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """The commits to judge, and how.

    :param first: the first commit, 0 for the oldest that the ledger has
    :param last: the last one, 0 for the newest
    :param allow_foreign: others may write to the sink's topics; their records are counted and passed over
    :param patience_seconds: how long a transaction that was open at the start may go on before it is a violation
    :param progress: called with the progress, in words, from time to time
    """

    first: int = 0
    last: int = 0
    allow_foreign: bool = False
    patience_seconds: float
    progress: Callable[[str], None] = lambda text: None


def audit(config: Mapping[str, Any], pipeline: str, options: AuditOptions) -> Report:
    """Judge a pipeline's output. Reads only.

    :param config: client configuration in librdkafka's names
    :raises RefusedError: when the pipeline has no ledger on this cluster, or lacks the commits that were asked for
    :raises ExactlyOnceError: when the cluster does not answer
    """
    from confluent_kafka import KafkaException

    from airflow_provider_exactlyonce.kafka.wire import UnansweredError, WireClient

    try:
        with LedgerReader(config, pipeline) as reader, WireClient(config) as client:
            return _Audit(config, pipeline, options, reader, client, Findings()).run()
    except (KafkaException, UnansweredError) as error:
        raise unanswered(config, error) from error


@dataclass(frozen=True, repr=False)
class _Audit:
    """One audit; :meth:`run` is called once."""

    config: Mapping[str, Any]
    pipeline: str
    options: AuditOptions
    reader: LedgerReader
    client: WireClient
    findings: Findings

    def run(self) -> Report:
        began = time.monotonic()
        tail = self.reader.tail()
        if tail is None or tail.place.run == 0:
            raise never_started(self.pipeline)
        self._check_bounds(tail.place.oldest, tail.place.commit)
        ledger, judged_topics, limits = self._gather(tail.place.oldest)
        with LedgerReader(self.config, backfill_pipeline(self.pipeline)) as backfills:
            totals = self._check_sink(ledger, judged_topics, limits, self._producers(backfills))
            number, backfilled_rows = self._audit_backfills(backfills)
        last = min(self.options.last or ledger.last, ledger.last)
        return Report(
            pipeline=self.pipeline,
            first=max(self.options.first, ledger.first),
            last=last,
            **asdict(totals),
            untold=ledger.untold,
            unjudged_sinks=sorted(ledger.unjudged_sinks),
            lost=dict(sorted(ledger.lost.items())),
            records=None if ledger.uncounted else ledger.records,
            late_rows=ledger.late_rows,
            backfills=number,
            backfilled_rows=backfilled_rows,
            violations=dict(sorted(self.findings.counts.items())),
            found=tuple(self.findings.in_order()),
            seconds=time.monotonic() - began,
        )

    def _gather(self, oldest: int) -> tuple[LedgerCheck, list[str], dict[TopicPartition, int]]:
        """Read the ledger; returns it with the topics that can be judged, and up to where.

        :param oldest: the oldest commit that the ledger's retention has kept
        """
        ledger = LedgerCheck(self.pipeline, oldest, self.findings)
        ledger_end = self._read_ledger(ledger, 0)
        judged_topics = self._existing(ledger)
        ends = self.client.offsets.ends(self.client.offsets.partitions(judged_topics))
        limits = self._settled(ends)
        # What was readable by then is in the ledger when everything that is in it now is decided.
        self._settled(self.client.offsets.ends([(self.reader.topic, 0)]))
        self._read_ledger(ledger, ledger_end)
        newer = {
            partition: end
            for partition, end in ledger.sink_ends.items()
            if partition[0] in judged_topics and end > ends.get(partition, 0)
        }
        return ledger, judged_topics, limits | self._settled(newer)

    def _producers(self, backfills: LedgerReader) -> frozenset[int]:
        """Return the producers of the backfills, of all that is readable by now."""
        if backfills.tail() is None:
            return frozenset()
        self._settled(self.client.offsets.ends([(backfills.topic, 0)]))
        return frozenset(record.producer_id for record in backfills.commits())

    def _audit_backfills(self, reader: LedgerReader) -> tuple[int, int]:
        """Judge the backfills' rows, unless a part of the pipeline's commits was asked for.

        :returns: how many there are, and their rows that agree
        """
        tail = reader.tail()
        if tail is None or tail.place.run == 0 or self.options.first or self.options.last:
            return 0, 0
        options, findings = replace(self.options, allow_foreign=True), Findings()
        backfill_audit = replace(self, pipeline=reader.pipeline, options=options, reader=reader, findings=findings)
        ledger, judged_topics, limits = backfill_audit._gather(tail.place.oldest)
        totals = backfill_audit._check_sink(ledger, judged_topics, limits, frozenset())
        self.findings.take(findings, "backfills")
        return len({record.backfill for record in reader.commits()}), totals.rows

    def _check_bounds(self, oldest: int, newest: int) -> None:
        first, last = self.options.first, self.options.last
        if (first and not oldest <= first <= newest) or last > newest or (last and last < max(first, oldest)):
            raise RefusedError(
                f"commits {first or 'the oldest'} to {last or 'the newest'} of {self.pipeline} can't be judged: the "
                f"ledger has {oldest} to {newest}"
            )

    def _read_ledger(self, ledger: LedgerCheck, start: int) -> int:
        """Add the ledger's records from an offset on; returns where to go on."""
        for number, (offset, record) in enumerate(self.reader.records(start), start=1):
            ledger.add(offset, record)
            start = offset + 1
            if number % _LEDGER_STEP == 0:
                self.options.progress(f"ledger: commit {ledger.last:,}")
        return start

    def _existing(self, ledger: LedgerCheck) -> list[str]:
        """Return the sink topics that can be judged; says which can't."""
        existing = []
        for topic in sorted({topic for topic, _ in ledger.sink_ends}):
            described = self.client.metadata(topic)
            recorded_id = ledger.sink_topic_ids.get(topic)
            if described is None:
                message = "the sink topic does not exist any more; its rows are lost"
                self.findings.add("I1", ledger.last, message, (topic, -1))
            elif recorded_id is not None and recorded_id != described.topic_id:
                message = f"the sink topic was recreated: its id is {described.topic_id}, commits went to {recorded_id}"
                self.findings.add("I1", ledger.last, message, (topic, -1))
            else:
                existing.append(topic)
        return existing

    def _settled(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Wait until everything before these offsets is decided; returns up to where it is."""
        stable = poll_until(
            lambda: self.client.offsets.last_stable(ends),
            done=lambda stable: all(stable[partition] >= end for partition, end in ends.items()),
            seconds=self.options.patience_seconds,
            poll_seconds=_POLL_SECONDS,
        )
        open_partitions = [partition for partition, end in ends.items() if stable[partition] < end]
        log_ends = self.client.offsets.ends(open_partitions)
        for partition in open_partitions:
            offset = stable[partition]
            if offset == log_ends[partition]:
                message = f"the log ends here; the ledger has rows up to offset {ends[partition] - 1}: they are lost"
                self.findings.add("I1", 0, message, partition, offset)
                continue
            producer = producer_of(BatchProducers(self.client).batch_at(partition, offset))
            message = (
                f"an open transaction of {producer} holds back readers from here on, for "
                f"{self.options.patience_seconds:g} s or longer; what is behind it is not judged"
            )
            self.findings.add("I6", 0, message, partition, offset)
        return {partition: min(end, stable[partition]) for partition, end in ends.items()}

    def _check_sink(
        self,
        ledger: LedgerCheck,
        judged_topics: list[str],
        limits: Mapping[TopicPartition, int],
        backfill_ids: frozenset[int],
    ) -> Totals:
        first, last = self.options.first or ledger.oldest, self.options.last or ledger.last
        with RangeReader(self.config, "audit", timeout_seconds=_TIMEOUT_SECONDS) as reader:
            sink = SinkCheck(
                reader=reader,
                producers=BatchProducers(self.client),
                judged=JudgedRecords(
                    topics=topics.describe(self.config, judged_topics),
                    limits=limits,
                    producer_ids=frozenset(ledger.producer_ids),
                    backfill_ids=backfill_ids,
                    allow_foreign=self.options.allow_foreign or ledger.untold > 0,
                ),
                findings=self.findings,
                log_starts=self._log_starts,
                advanced=lambda totals: self.options.progress(f"sink: {totals.rows:,} rows judged"),
            )
            if first == 1:
                for partition, start in self._log_starts(judged_topics).items():
                    sink.begin_at(partition, start)
            for commits in self._windows(first, last):
                sink.window(commits)
            if not self.options.last:
                sink.rest()
            return sink.totals

    def _log_starts(self, topics: Iterable[str]) -> dict[TopicPartition, int]:
        return self.client.offsets.starts(self.client.offsets.partitions(topics))

    def _windows(self, first: int, last: int) -> Iterator[list[CommitRecord]]:
        commits: list[CommitRecord] = []
        ranges = 0
        for record in self.reader.commits(first):
            if record.commit > last:
                break
            commits.append(record)
            ranges += sum(map(len, record.sink.values()))
            if len(commits) >= _WINDOW_COMMITS or ranges >= _WINDOW_RANGES:
                yield commits
                commits, ranges = [], 0
        if commits:
            yield commits
