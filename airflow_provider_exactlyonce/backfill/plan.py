"""The batches of a backfill: where each ends, and whether its rows count. Made before the first one runs.

With a savepoint's state the batches before the range are those that were committed; with empty state the warm-up. Their
output is suppressed. A batch that is one recorded commit of the same version is *exact*: it runs with the recorded
watermark and time, and must give the recorded rows. Where a range begins or ends within a commit, the commit is cut
there, and from then on nothing is exact.

A *closing* batch has no data: it emits the rows that the watermark of the batch before it has completed. Without one at
each end, two ranges that follow each other would both have, or both lack, the rows that are completed by the last
records of the first. It is left out where the watermark has not moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from airflow_provider_exactlyonce.backfill.request import BackfillState, Output
from airflow_provider_exactlyonce.backfill.resolve import Positions, Resolved
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka.topic_partition import by_partition
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics


@dataclass(frozen=True, kw_only=True)
class BackfillStep:
    """One batch.

    :param ends: where it ends in the source
    :param emits: whether it is in the range
    :param commit: the recorded commit that it repeats as a whole, None for none
    :param exact: it has that commit's watermark and time, and must give its rows
    :param closing: it has no data, and is left out where the watermark has not moved
    """

    ends: Positions
    emits: bool
    commit: int | None = None
    exact: bool = False
    closing: bool = False


@dataclass(frozen=True, kw_only=True)
class PlanInputs:
    """The inputs besides the range that decide the batches.

    :param limits: (topics of a source, its records a batch), for batches that are no recorded commit's
    :param version: of the job that runs
    """

    state: BackfillState
    kind: Output
    version: str
    limits: Sequence[tuple[SourceTopics, int]]


def plan(resolved: Resolved, terms: PlanInputs, commits: Iterable[CommitRecord]) -> list[BackfillStep]:
    """Return the batches in their order.

    :param commits: the ledger's commits after ``resolved.base_commit``, oldest first; none are needed with empty state
        unless the output is compared
    :raises RefusedError: when the source was read twice in between, or the ledger has forgotten a commit
    """
    planner = _Planner(resolved, terms)
    if terms.state is BackfillState.EMPTY:
        planner.from_empty(commits)
    elif resolved.commits is not None:
        planner.of_commits(_known(resolved, commits), resolved.commits)
    else:
        planner.of_offsets(_known(resolved, commits))
    return planner.steps


def _known(resolved: Resolved, commits: Iterable[CommitRecord]) -> Iterator[CommitRecord]:
    """Yield the commits that there were when the range was resolved.

    Later commits would cut it elsewhere, and batches that are written already would not be found again.

    :raises RefusedError: when one is missing
    """
    expected = resolved.base_commit + 1
    for record in commits:
        if resolved.newest_commit is not None and record.commit > resolved.newest_commit:
            return
        if record.commit != expected:
            raise RefusedError(
                f"commit {expected} of pipeline {record.pipeline} is not in its ledger any more, and the backfill runs "
                "it again: begin with an empty state, or keep more history with ledger_retention"
            )
        expected += 1
        yield record


class _Planner:
    """Makes one plan."""

    def __init__(self, resolved: Resolved, terms: PlanInputs) -> None:
        self.steps: list[BackfillStep] = []
        self._resolved = resolved
        self._terms = terms
        self._position: Positions = dict(resolved.begins)

    def from_empty(self, commits: Iterable[CommitRecord]) -> None:
        """Plan warm-up and range; for a comparison, the range's batches are the recorded ones."""
        self._go_on({**self._position, **self._resolved.starts}, emits=False)
        self._close(emits=False)
        if self._terms.kind is Output.COMPARE and self._resolved.commits is not None:
            first, last = self._resolved.commits
            for record in commits:
                if first <= record.commit <= last:
                    self._add_commit(record, emits=True, exact=False)
        else:
            self._go_on({**self._position, **self._resolved.ends}, emits=True)
        self._close(emits=True)

    def of_commits(self, commits: Iterable[CommitRecord], span: tuple[int, int]) -> None:
        """Plan a range of whole commits, and those before it."""
        for record in commits:
            if record.commit > span[1]:
                return
            self._add_commit(record, emits=record.commit >= span[0], exact=self._is_exact(record))

    def of_offsets(self, commits: Iterable[CommitRecord]) -> None:
        """Plan a range that may begin and end within a commit."""
        starts = self._resolved.starts
        remaining = iter(commits)
        for record in remaining:
            if any(end > starts.get(partition, end) for partition, end in record.ends.items()):
                remaining = chain((record,), remaining)
                break
            self._add_commit(record, emits=False, exact=self._is_exact(record))
        self._position = {**self._resolved.unseen, **self._position}
        begin = {**self._position, **starts}
        cut = begin != self._position
        if cut:
            self._go_on(begin, emits=False)
            self._close(emits=False)
        # Partitions that the range does not name stay where they are.
        end = {**self._position, **self._resolved.ends}
        for record in remaining:
            ends = self._ends_after(record)
            clipped = {
                partition: max(
                    self._position[partition], min(offset, end.setdefault(partition, self._position[partition]))
                )
                for partition, offset in ends.items()
            }
            if not cut and clipped == ends:
                self._add_commit(record, emits=True, exact=self._is_exact(record))
                continue
            cut = True
            if clipped != self._position:
                self._add(BackfillStep(ends=clipped, emits=True))
            if all(self._position[partition] >= offset for partition, offset in end.items()):
                break
        self._go_on(end, emits=True)
        self._close(emits=True)

    def _is_exact(self, record: CommitRecord) -> bool:
        return record.version == self._terms.version

    def _ends_after(self, record: CommitRecord) -> Positions:
        for partition, (start, _) in by_partition(record.source).items():
            self._position.setdefault(partition, start)
        return {**self._position, **record.ends}

    def _add_commit(self, record: CommitRecord, *, emits: bool, exact: bool) -> None:
        ends = self._ends_after(record)
        rewound = [topic_partition for topic_partition, end in ends.items() if end < self._position[topic_partition]]
        if rewound:
            topic, partition = rewound[0]
            raise RefusedError(
                f"commit {record.commit} ends at offset {ends[rewound[0]]} of {topic}-{partition}, before the commits "
                "in front of it: the pipeline was restored to write its output again. Choose a range after it, or a "
                "savepoint that is"
            )
        closing = not exact and ends == self._position
        self._add(BackfillStep(ends=ends, emits=emits, commit=record.commit, exact=exact, closing=closing))

    def _go_on(self, target: Positions, *, emits: bool) -> None:
        """Add batches up to a position, cut by the sources' limits."""
        start = self._position
        totals: dict[str, int] = {}
        for (topic, partition), end in target.items():
            totals[topic] = totals.get(topic, 0) + end - start.get((topic, partition), end)
        if not any(totals.values()):
            return
        limits = [(sum(topics.share(totals).values()), limit) for topics, limit in self._terms.limits]
        pieces = max((-(-total // limit) for total, limit in limits), default=1) or 1
        for piece in range(1, pieces + 1):
            ends = {
                topic_partition: start.get(topic_partition, end)
                + (end - start.get(topic_partition, end)) * piece // pieces
                for topic_partition, end in target.items()
            }
            self._add(BackfillStep(ends=ends, emits=emits))

    def _close(self, *, emits: bool) -> None:
        if self.steps and not self.steps[-1].exact and self.steps[-1].emits is emits:
            self._add(BackfillStep(ends=self._position, emits=emits, closing=True))

    def _add(self, step: BackfillStep) -> None:
        self.steps.append(step)
        self._position = step.ends
