"""A backfill's batches while they run: each is told to Spark, and what has been done is kept beside the checkpoint.

Spark runs one uncommitted batch again by itself, so the first batch of every start is written into the checkpoint as
its ``offsets/N``; each further one is steered from the callback of the one before, as in a replay. Spark is never left
to decide where a batch ends.

``steps.json`` beside the checkpoint says which step the newest batch was. It is written in the callback, before Spark's
``commits/N``: a batch that is run again is the same step again. A batch that is in the ledger and not in ``steps.json``
is known by where it ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.backfill.plan import Step
from airflow_provider_exactlyonce.checkpoint.layout import BatchOffsets, Checkpoint, parse_offsets
from airflow_provider_exactlyonce.checkpoint.offsets_text import adapted, composed
from airflow_provider_exactlyonce.control import documents
from airflow_provider_exactlyonce.exceptions import DivergedError, ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.ledger.recorded import RecordedCommits
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.streaming.replay import OneStartPerBatchError
from airflow_provider_exactlyonce.streaming.spark_steering import SteeredQuery, SteeringError, fixed_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("exactlyonce")

_START_SECONDS: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class Done:
    """What has been done; ``steps.json``.

    :param batch: the newest batch
    :param step: index of the step that it was, -1 for none
    :param suppressed: batches that ran without output
    :param compared: commits that were compared with what was delivered
    :param differences: (commit, rows and digest that were delivered, that were found) of those that differ
    :param diverged: commits before the range that gave other rows, which was accepted
    """

    batch: int
    step: int = -1
    suppressed: int = 0
    compared: int = 0
    differences: list[tuple[int, int, str, int, str]] = field(default_factory=list)
    diverged: list[int] = field(default_factory=list)


class BackfillSteps:
    """Tells Spark the batches of one backfill in their turn. Called by the query's thread but for :meth:`attach`.

    :param checkpoint: of the backfill's lineage
    :param steps: all of them
    :param commits: the pipeline's records, for the steps that repeat one; None when none does
    :param topics: of the sources, in Spark's order
    :param own: the newest record of this lineage in the ledger of backfills
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Checkpoint,
        steps: Sequence[Step],
        *,
        commits: RecordedCommits | None,
        topics: Sequence[str],
        own: CommitRecord | None,
    ) -> None:
        self._spark: Final = spark
        self._checkpoint: Final = checkpoint
        self._steps: Final = steps
        self._commits: Final = commits
        self._topics: Final = topics
        self._own: Final = own
        self._path: Final = checkpoint.path.parent / "steps.json"
        self._query: StreamingQuery | None = None
        self._attached: Final = threading.Event()
        self._steered: SteeredQuery | None = None
        self._once = False
        newest = checkpoint.newest_commit()  # without steps.json that is the batch whose state it begins with
        self.done = read(self._path) or Done(batch=-1 if newest is None else newest)
        self._next = self.done.step + 1
        self._started_at = -1

    @property
    def pending(self) -> bool:
        """Whether a step remains."""
        return self._next < len(self._steps)

    @property
    def upcoming(self) -> Step:
        """The step that is run next."""
        return self._steps[self._next]

    def close(self) -> None:
        """Close the connection to the ledger."""
        if self._commits is not None:
            self._commits.close()

    def prepare(self, *, once: bool) -> int | None:
        """Write the next batch into the checkpoint, before every start of the query.

        :returns: its number, None when none is left
        :param once: the query can't be steered, and ends after it
        """
        self._attached.clear()
        self._query, self._steered, self._once = None, None, once
        newest = self._checkpoint.newest_commit()
        last = self.done.batch if newest is None else newest
        if not last <= self.done.batch <= last + 1:
            raise RefusedError(
                f"{self._checkpoint.path} is at batch {last}, and its steps.json at {self.done.batch}: files of it "
                "were lost. Remove the directory of this backfill if nothing of it is in its ledger"
            )
        number = last + 1
        if self.done.batch == number:  # Spark has not noted it: it is the same step again
            self._next = self.done.step
        before = self._checkpoint.offsets(last)
        committed = self.committed_before(number)
        if committed is not None:
            self._find_committed(committed)
            text = committed.offsets
        else:
            self._leave_out_closing(last, before)
            if not self.pending:
                return None
            text = self._text(last, before)
        for planned in self._checkpoint.batches("offsets"):
            if planned >= number:
                self._checkpoint.remove("offsets", planned)
        self._checkpoint.write_offsets(number, text)
        self._started_at = self._next
        return number

    def committed_before(self, number: int) -> CommitRecord | None:
        """Return the record of a batch that is committed, and that Spark has not noted; None when it is not."""
        return self._own if self._own is not None and self._own.batch == number else None

    def check_progress(self) -> None:
        """Check, after the query's end, that something was done since its start.

        :raises ExactlyOnceError: when nothing was
        """
        if self.pending and self._next == self._started_at:
            raise ExactlyOnceError(
                f"the query ended before batch {self.done.batch + 1} of the backfill. Start it again; it goes on from "
                "there"
            )

    def attach(self, query: StreamingQuery) -> None:
        """Tell which query runs; its first callback waits for it."""
        self._query = query
        self._attached.set()

    def begin(self, number: int, planned: BatchOffsets) -> Step:
        """Return what a batch is.

        :raises DivergedError: when Spark has planned something else
        """
        if not self._once:
            self._steered_query()  # before anything runs, if it can't be
        step = self.upcoming
        ends = {(topic, part): end for topic, of in planned.kafka_ends().items() for part, end in of.items()}
        wrong = [place for place in ends.keys() | step.ends.keys() if ends.get(place) != step.ends.get(place)]
        if wrong:
            topic, partition = min(wrong)
            raise DivergedError(
                f"batch {number} of the backfill would end at offset {ends.get(min(wrong))} of {topic}-{partition}, "
                f"and {step.ends.get(min(wrong))} was planned. Nothing was written; start it again"
            )
        if step.exact:
            recorded = self.record(step)
            watermark = parse_offsets(recorded.offsets).watermark
            if planned.watermark != watermark:
                raise DivergedError(
                    f"commit {recorded.commit} would be run again with the watermark {planned.watermark}, and had "
                    f"{watermark}. Nothing was written"
                )
        return step

    def record(self, step: Step) -> CommitRecord:
        """Return the commit that a step repeats."""
        if self._commits is None or step.commit is None:
            raise ExactlyOnceError("a step without a commit has no record")
        return self._commits.get(step.commit)

    def finish(self, number: int, **changes: Any) -> None:
        """Note that a batch has been run, and tell Spark the next one.

        :param changes: fields of :class:`Done`
        """
        step = self.upcoming
        if self.done.batch < number:  # else it is noted already, and Spark has run it again
            self.done = replace(self.done, batch=number, step=self._next, **changes)
        documents.write(self._path, asdict(self.done))
        self._next += 1
        failpoints.reach("backfill-step")
        if self._once:
            return
        steered = self._steered_query()
        if step.exact:
            steered.forget_operator_watermarks()
        if self.pending:
            self._steer(steered, self.upcoming)
        else:
            steered.end()

    def _steer(self, steered: SteeredQuery, step: Step) -> None:
        if step.exact:
            offsets = parse_offsets(self.record(step).offsets)
            steered.steer(offsets.sources, timestamp=offsets.timestamp, watermark=offsets.watermark)
        else:
            text = composed({}, self._topics, step.ends, timestamp=0, watermark=0)
            steered.steer(parse_offsets(text).sources, timestamp=self._timestamp(step), watermark=None)

    def _find_committed(self, record: CommitRecord) -> None:
        """Find the step that a batch was which is in the ledger, and that Spark has not noted."""
        ends = {(topic, part): end for topic, of in record.source.items() for part, (_, end) in of.items()}
        for index in range(self._next, min(self._next + 2, len(self._steps))):
            if self._steps[index].ends == ends:
                self._next = index
                return
        raise RefusedError(f"batch {record.batch} of the backfill is committed up to {ends}, which is not in its plan")

    def _leave_out_closing(self, last: int, before: BatchOffsets | None) -> None:
        """Pass over steps without data that have nothing to let go."""
        done = self._checkpoint.commit(last)
        moved = before is not None and done is not None and done.next_watermark > before.watermark
        while self.pending and self.upcoming.closing and not moved:
            self._next += 1

    def _text(self, last: int, before: BatchOffsets | None) -> str:
        step, done = self.upcoming, self._checkpoint.commit(last)
        if step.exact:
            return adapted(self.record(step).offsets, confs_of=before.text if before else None, watermark=None)
        return composed(
            before.conf if before is not None else fixed_settings(self._spark),
            self._topics,
            step.ends,
            timestamp=self._timestamp(step),
            watermark=done.next_watermark if done is not None else 0,
        )

    def _timestamp(self, step: Step) -> int:
        return int(time.time() * 1000) if step.commit is None else self.record(step).batch_timestamp

    def _steered_query(self) -> SteeredQuery:
        if self._steered is None:
            if not self._attached.wait(_START_SECONDS) or self._query is None:
                raise ExactlyOnceError(f"the query has not started within {_START_SECONDS:.0f} s")
            try:
                self._steered = SteeredQuery(self._spark, self._query)
            except SteeringError as error:
                raise OneStartPerBatchError(str(error)) from error
        return self._steered


def read(path: Path) -> Done | None:
    """Return what has been done, None when nothing was."""
    return documents.load(path, Done)
