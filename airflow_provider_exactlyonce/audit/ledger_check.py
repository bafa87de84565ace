"""The ledger by itself: commits without gap or repeat, source ranges that tile, one run at a time."""

from __future__ import annotations

from airflow_provider_exactlyonce.audit.findings import Findings
from airflow_provider_exactlyonce.kafka.digest import MODULUS
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition
from airflow_provider_exactlyonce.ledger.records import ClaimRecord, CommitRecord, Record, SourceRanges
from airflow_provider_exactlyonce.tables.positions import is_table


class LedgerCheck:
    """Checks a ledger's records in their order; keeps the facts that it needs of earlier records.

    :param pipeline: whose ledger it is
    :param oldest: the oldest commit that retention has kept; older ones are not judged
    :param findings: get each violation
    :ivar untold: commits with less than exactly once that do not record where their rows are
    :ivar records: source records that commits have read, as far as recorded
    :ivar uncounted: commits that don't record it
    :ivar late_rows: rows behind the watermark that operators have left out
    :ivar unjudged_sinks: those that are not Kafka; an audit of theirs is their own
    :ivar lost: {commit: its source ranges} of commits with possibly lost rows, as the ledger has it
    """

    def __init__(self, pipeline: str, oldest: int, findings: Findings) -> None:
        self.pipeline = pipeline
        self.oldest = oldest
        self.producer_ids: set[int] = set()
        self.sink_topic_ids: dict[str, str] = {}
        self.sink_ends: dict[TopicPartition, int] = {}
        self.first = 0
        self.untold = 0
        self.records = 0
        self.uncounted = 0
        self.late_rows = 0
        self.unjudged_sinks: set[str] = set()
        self.lost: dict[int, SourceRanges] = {}
        self._say = findings.add
        self._previous: CommitRecord | None = None
        self._previous_offset = -1
        self._run = 0
        self._run_offset = -1
        #: Of each backfill; in most ledgers there is none.
        self._source_ends: dict[str | None, dict[TopicPartition, int]] = {}
        self._source_topic_ids: dict[str, str] = {}
        self._batches: dict[str, int] = {}

    @property
    def last(self) -> int:
        """The newest commit so far, 0 for none."""
        return self._previous.commit if self._previous else 0

    def add(self, offset: int, record: Record) -> None:
        """Look at the next record."""
        if isinstance(record, ClaimRecord):
            self._add_claim(offset, record)
        elif record.commit >= self.oldest:
            self._add_commit(offset, record)

    def _add_claim(self, offset: int, claim: ClaimRecord) -> None:
        if claim.run < self._run:
            self._say("I5", self.last, f"run {claim.run} claimed the pipeline after run {self._run} had")
        if self._previous is not None and claim.base_commit != self.last:
            self._say("I7", self.last, f"the claim of run {claim.run} builds on commit {claim.base_commit}")
        self._run, self._run_offset = claim.run, offset
        self.lost.update(claim.lost)

    def _add_commit(self, offset: int, record: CommitRecord) -> None:
        if record.pipeline != self.pipeline:
            self._say("I7", record.commit, f"it is a commit of pipeline {record.pipeline}")
        self._check_number(record)
        self._check_batch(record)
        self._check_run(record)
        self._check_pointers(record)
        if record.reemits_from is not None:  # somebody wanted the output again: the source is read again on purpose
            self._source_ends.clear()
        self._check_source(record, self._source_ends.setdefault(record.backfill, {}))
        self._check_counts(record)
        self._check_sink(record)
        self.first = self.first or record.commit
        self.producer_ids.add(record.producer_id)
        self.unjudged_sinks.update(record.others)
        self._previous, self._previous_offset = record, offset

    def _check_number(self, record: CommitRecord) -> None:
        expected = self.last + 1 if self._previous else self.oldest
        if record.commit > expected:
            self._say("I4", record.commit, f"commits {expected} to {record.commit - 1} are not in the ledger")
        elif record.commit < expected:
            self._say("I4", record.commit, f"the number is repeated: commit {self.last} is before it in the ledger")

    def _check_batch(self, record: CommitRecord) -> None:
        newest = self._batches.get(record.lineage)
        if newest is not None and record.batch <= newest:
            self._say("I1", record.commit, f"batch {record.batch} of lineage {record.lineage} is committed twice")
        elif newest is not None and record.batch != newest + 1:
            self._say("I4", record.commit, f"lineage {record.lineage} went from batch {newest} to {record.batch}")
        self._batches[record.lineage] = record.batch

    def _check_run(self, record: CommitRecord) -> None:
        pointer = record.before
        if pointer.run_offset < self._run_offset or (
            pointer.run_offset == self._run_offset and pointer.run != self._run
        ):
            self._say(
                "I5",
                record.commit,
                f"it builds on the claim of run {pointer.run} at offset {pointer.run_offset}, and run {self._run} had "
                f"claimed the pipeline at {self._run_offset}",
            )
        else:  # where it is another one, the claim was repeated, and compaction has removed its older record
            self._run, self._run_offset = pointer.run, pointer.run_offset
        if record.run != pointer.run:
            self._say("I5", record.commit, f"run {record.run} committed it on the claim of run {pointer.run}")
        previous = self._previous
        if previous and (previous.producer_id, previous.epoch) == (record.producer_id, record.epoch):
            self._say("I5", record.commit, f"it has producer epoch {record.epoch}, as commit {previous.commit} has")

    def _check_pointers(self, record: CommitRecord) -> None:
        pointer = record.before
        if self._previous and (pointer.commit, pointer.commit_offset) != (self._previous.commit, self._previous_offset):
            self._say(
                "I7",
                record.commit,
                f"it names commit {pointer.commit} at offset {pointer.commit_offset} as the one before it, which is "
                f"{self._previous.commit} at {self._previous_offset}",
            )

    def _check_source(self, record: CommitRecord, ends: dict[TopicPartition, int]) -> None:
        for topic, ranges in record.source.items():
            topic_id = record.source_topic_ids.get(topic)
            former_id = self._source_topic_ids.get(topic, topic_id)
            if topic_id is not None and former_id is not None:
                if topic_id != former_id:
                    self._say("I4", record.commit, f"source topic {topic} was recreated: {former_id} became {topic_id}")
                self._source_topic_ids[topic] = topic_id
            for partition, (start, end) in ranges.items():
                topic_partition = topic, partition
                expected = ends.get(topic_partition, start)
                if start > expected:
                    self._say(
                        "I4",
                        record.commit,
                        f"source offsets {expected} to {start - 1} are in no commit",
                        topic_partition,
                    )
                elif start < expected:
                    message = f"source offsets {start} to {expected - 1} are in an earlier commit, too"
                    self._say("I4", record.commit, message, topic_partition, start)
                if end < start:
                    self._say(
                        "I4",
                        record.commit,
                        f"the source range ends at {end}, before its start {start}",
                        topic_partition,
                    )
                ends[topic_partition] = end

    def _check_counts(self, record: CommitRecord) -> None:
        """Check the counts of records read and rows left out against the source ranges and the commit before."""
        offsets = sum(end - start for ranges in record.source.values() for start, end in ranges.values())
        if record.records is None:
            self.uncounted += 1
        else:
            self.records += record.records
            has_tables = any(map(is_table, record.source))  # whose positions do not count rows
            if not 0 <= record.records <= offsets and not (has_tables and record.records >= 0):
                message = f"it says {record.records} records were read, and its source ranges have {offsets} offsets"
                self._say("I4", record.commit, message)
        for left_out in record.late or ():
            if left_out.rows <= 0:
                self._say("I4", record.commit, f"operator {left_out.operator} can't have left out {left_out.rows} rows")
        late = record.late_rows or 0
        self.late_rows += late
        if (
            record.late is not None
            and self._previous is not None
            and record.late_total != self._previous.late_total + late
        ):
            self._say(
                "I4",
                record.commit,
                f"it says {record.late_total} late rows up to here, {late} of them its own, and commit "
                f"{self._previous.commit} says {self._previous.late_total}",
            )

    def _check_sink(self, record: CommitRecord) -> None:
        if record.lacks_offsets:
            self.untold += 1
            return
        sums: dict[str, tuple[int, int]] = {}
        for topic, ranges in record.sink.items():
            if topic in record.sink_topic_ids:
                self.sink_topic_ids[topic] = record.sink_topic_ids[topic]
            sums[topic] = (
                sum(sink_range.rows for sink_range in ranges.values()),
                sum(sink_range.digest for sink_range in ranges.values()),
            )
            for partition, written in ranges.items():
                topic_partition = topic, partition
                if not 0 < written.rows <= written.last - written.first + 1:
                    message = f"{written.rows} rows can't be at the offsets {written.first} to {written.last}"
                    self._say("I7", record.commit, message, topic_partition, written.first)
                if written.first < self.sink_ends.get(topic_partition, 0):
                    message = f"the range {written.first} to {written.last} overlaps an earlier commit's"
                    self._say("I1", record.commit, message, topic_partition, written.first)
                self.sink_ends[topic_partition] = max(written.last + 1, self.sink_ends.get(topic_partition, 0))
        if record.late_topic is not None:
            rows, _ = sums.pop(record.late_topic, (0, 0))
            if rows != (record.late_rows or 0):
                message = (
                    f"it has left out {record.late_rows} late rows, and {rows} were written to {record.late_topic}"
                )
                self._say("I4", record.commit, message)
        rows, digest = (sum(column) for column in zip(*sums.values(), strict=True)) if sums else (0, 0)
        # One of the topics may be the one for bad records, which rows and digest leave out.
        bad = [topic_sums for topic_sums in sums.values() if topic_sums[0] == record.bad_records]
        left_out = bad if record.bad_records else [(0, 0)]
        fitting = [(rows - bad_rows, (digest - bad_digest) % MODULUS) for bad_rows, bad_digest in left_out]
        if (record.rows, record.digest) not in fitting:
            self._say(
                "I7",
                record.commit,
                f"it says {record.rows} rows with digest {record.digest:016x} and {record.bad_records} bad records; "
                f"its partitions add up to {rows} with {digest % MODULUS:016x}",
            )
