"""A backfill's batches while they run: each is steered in Spark, and the progress is kept beside the checkpoint.

Spark runs one uncommitted batch again by itself, so the first batch of every start is written into the checkpoint as
its ``offsets/N``; each further one is steered from the callback of the one before, as in a replay. Spark is never left
to decide where a batch ends.

The ledger has the written batches: its records of the backfill are those of the range's first batches, in their order,
whichever lineage, home or words of a request wrote them. Such a batch is run for its state only, as a replay does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.backfill import progress
from airflow_provider_exactlyonce.backfill.plan import BackfillStep
from airflow_provider_exactlyonce.backfill.progress import BackfillProgress
from airflow_provider_exactlyonce.backfill.resolve import Positions, positions_to_json
from airflow_provider_exactlyonce.checkpoint.layout import BatchOffsets, ClaimedCheckpoint, parse_offsets
from airflow_provider_exactlyonce.checkpoint.offsets_text import adapted, composed
from airflow_provider_exactlyonce.exceptions import DivergedError, ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.kafka.topic_partition import by_partition
from airflow_provider_exactlyonce.ledger.commit_range import RecordedCommits
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics
from airflow_provider_exactlyonce.streaming.spark.steering import QuerySteering, SteeredQuery, fixed_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("exactlyonce")


class BackfillSteps:
    """Tells Spark the batches of one backfill in their turn. Called by the query's thread.

    :param checkpoint: of the backfill's lineage
    :param steps: all of them
    :param commits: the pipeline's records, for the steps that repeat one; None when none does
    :param sources: the topics of each source, in Spark's order
    :param done: what of them has been done
    :param written: the record of each batch of the range that is written, in their order; None when none ever is
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: ClaimedCheckpoint,
        steps: Sequence[BackfillStep],
        *,
        commits: RecordedCommits | None,
        sources: Sequence[SourceTopics],
        done: BackfillProgress,
        written: Sequence[CommitRecord] | None,
    ) -> None:
        self._spark: Final = spark
        self._checkpoint: Final = checkpoint
        self._steps: Final = steps
        self._commits: Final = commits
        self._sources: Final = sources
        self._written: Final = None if written is None else list(written)
        self.steering: Final = QuerySteering(spark)
        self._has_one_start_per_batch = self._repeats = False
        self.done = done
        self._next = done.upcoming
        self._started_at = -1

    @property
    def goes_live(self) -> bool:
        """Never: a backfill ends with its last step."""
        return False

    @property
    def pending(self) -> bool:
        """Whether a step remains."""
        return self._next < len(self._steps)

    @property
    def upcoming(self) -> BackfillStep:
        """The step that is run next."""
        return self._steps[self._next]

    @property
    def written(self) -> Sequence[CommitRecord]:
        """The record of each batch of the range that is written, in their order."""
        return self._written or ()

    @property
    def suppressed(self) -> int:
        """How many batches before the range have been run."""
        return sum(not self._steps[index].emits for index in self.done.ran)

    @property
    def compared(self) -> int:
        """How many commits of the range have been run."""
        return sum(self._steps[index].emits and self._steps[index].commit is not None for index in self.done.ran)

    def close(self) -> None:
        """Close the connection to the ledger."""
        if self._commits is not None:
            self._commits.close()

    def prepare(self, *, one_start_per_batch: str | None) -> bool:
        """Write the next batch into the checkpoint, before every start of the query; false when none is left.

        :param one_start_per_batch: why the query can't be steered, and ends after it
        :raises RefusedError: when the ledger has batches that are in no step
        """
        self.steering.expect()
        self._has_one_start_per_batch = one_start_per_batch is not None
        newest = self._checkpoint.newest_commit()
        last_batch = self.done.base if newest is None else newest
        self.done = self.done.cut(last_batch)  # what Spark has not noted it runs again
        self._next = self.done.upcoming
        last_offsets = self._checkpoint.offsets(last_batch)
        self._leave_out_closing(last_batch, last_offsets)
        if not self.pending:
            if (record := self._next_record()) is not None:
                raise self._another_range(record, None)
            return False
        self._checkpoint.plan(last_batch + 1, self._text(last_batch, last_offsets))
        self._started_at = self._next
        return True

    def recorded(self) -> CommitRecord | None:
        """Return the record of the upcoming step if it is written already, None when it is not.

        :raises RefusedError: when the written batch ends elsewhere
        """
        record = self._next_record() if self.upcoming.emits else None
        if record is not None and record.ends != self.upcoming.ends:
            raise self._another_range(record, self.upcoming)
        return record

    def wrote(self, record: CommitRecord) -> None:
        """Note a batch that was written."""
        if self._written is not None:
            self._written.append(record)

    def _next_record(self) -> CommitRecord | None:
        """Return the record of the batch of the range that is run next, None when it is not written yet."""
        if self._written is None:
            return None
        count = sum(self._steps[index].emits for index in self.done.ran)
        return self._written[count] if count < len(self._written) else None

    def _another_range(self, record: CommitRecord, step: BackfillStep | None) -> RefusedError:
        actual = f"ends at {_shown(step.ends)}" if step is not None else "does not exist"
        return RefusedError(
            f"backfill {record.backfill} has written a batch that ends at {_shown(record.ends)} (record "
            f"{record.commit} of {record.pipeline}), and here that batch {actual}: it was asked for then as another "
            "range of the source. Nothing was written; ask for what is missing by its offsets"
        )

    def check_progress(self) -> None:
        """Check, after the query's end, that something was done since its start.

        :raises ExactlyOnceError: when nothing was
        """
        if self.pending and self._next == self._started_at:
            raise ExactlyOnceError(
                f"the query ended before batch {self.done.batch + 1} of the backfill. Start it again; it goes on from "
                "there"
            )

    def begin(self, number: int, planned: BatchOffsets) -> BackfillStep:
        """Return the step that a batch is.

        :raises DivergedError: when Spark has planned another batch
        """
        if not self._has_one_start_per_batch:
            self.steering.query()  # before anything runs, if it can't be
        step = self.upcoming
        ends = by_partition(planned.kafka_ends())
        wrong = [
            topic_partition
            for topic_partition in ends.keys() | step.ends.keys()
            if ends.get(topic_partition) != step.ends.get(topic_partition)
        ]
        if wrong:
            topic, partition = min(wrong)
            raise DivergedError(
                f"batch {number} of the backfill would end at offset {ends.get(min(wrong))} of {topic}-{partition}, "
                f"and {step.ends.get(min(wrong))} was planned. Nothing was written; start it again"
            )
        pattern = self._pattern()
        self._repeats = pattern is not None
        if pattern is not None:
            watermark = parse_offsets(pattern.offsets).watermark
            if planned.watermark != watermark:
                raise DivergedError(
                    f"commit {pattern.commit} of {pattern.pipeline} would be run again with the watermark "
                    f"{planned.watermark}, and had {watermark}. Nothing was written"
                )
        return step

    def record(self, step: BackfillStep) -> CommitRecord:
        """Return the commit that a step repeats."""
        if self._commits is None or step.commit is None:
            raise ExactlyOnceError("a step without a commit has no record")
        return self._commits.get(step.commit)

    def finish(self, number: int, **changes: Any) -> None:
        """Note that a batch has been run, and tell Spark the next one.

        :param changes: fields of :class:`BackfillProgress`
        """
        self.done = replace(self.done, ran=[*self.done.ran, self._next], **changes)
        progress.write(self._checkpoint, self.done)
        self._next += 1
        failpoints.reach("backfill-step")
        if self._has_one_start_per_batch:
            return
        steered = self.steering.query()
        if self._repeats:
            steered.forget_operator_watermarks()
        while self._is_left_out():
            self._next += 1
        if self.pending:
            self._steer(steered)
        else:
            steered.end()

    def _pattern(self) -> CommitRecord | None:
        """Return the record that the upcoming step repeats with its watermark and time, None when it repeats none."""
        record = self.recorded()
        if record is not None:
            return record
        return self.record(self.upcoming) if self.upcoming.exact else None

    def _steer(self, steered: SteeredQuery) -> None:
        pattern = self._pattern()
        if pattern is not None:
            offsets = parse_offsets(pattern.offsets)
            steered.steer(offsets.sources, timestamp=offsets.timestamp, watermark=offsets.watermark)
        else:
            step = self.upcoming
            text = composed({}, self._sources, positions_to_json(step.ends), timestamp=0, watermark=0)
            steered.steer(parse_offsets(text).sources, timestamp=self._timestamp(step), watermark=None)

    def _is_left_out(self) -> bool:
        """Tell whether the upcoming step is one without data that was left out when the range was written."""
        record = self._next_record() if self.pending and self.upcoming.closing and self.upcoming.emits else None
        return record is not None and record.ends != self.upcoming.ends

    def _leave_out_closing(self, last_batch: int, last_offsets: BatchOffsets | None) -> None:
        """Skip steps without data that change nothing, or that were skipped when the range was written."""
        last_commit = self._checkpoint.commit(last_batch)
        watermark_moved = (
            last_offsets is not None and last_commit is not None and last_commit.next_watermark > last_offsets.watermark
        )
        while self.pending and self.upcoming.closing:
            record = self._next_record() if self.upcoming.emits else None
            if watermark_moved if record is None else not self._is_left_out():
                return
            self._next += 1

    def _text(self, last_batch: int, last_offsets: BatchOffsets | None) -> str:
        step, last_commit, pattern = self.upcoming, self._checkpoint.commit(last_batch), self._pattern()
        if pattern is not None:
            return adapted(pattern.offsets, confs_of=last_offsets.text if last_offsets else None, watermark=None)
        return composed(
            last_offsets.conf if last_offsets is not None else fixed_settings(self._spark),
            self._sources,
            positions_to_json(step.ends),
            timestamp=self._timestamp(step),
            watermark=last_commit.next_watermark if last_commit is not None else 0,
        )

    def _timestamp(self, step: BackfillStep) -> int:
        return int(time.time() * 1000) if step.commit is None else self.record(step).batch_timestamp


def _shown(ends: Positions) -> str:
    return ", ".join(f"{topic}-{partition} offset {end}" for (topic, partition), end in sorted(ends.items()))
