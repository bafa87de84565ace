"""Resolves a request in the cluster: from which source offsets to which, and the state that it begins with."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from operator import attrgetter
from typing import Any, Final, Self

from airflow_provider_exactlyonce import codec, moments
from airflow_provider_exactlyonce.backfill.request import BackfillRequest, BackfillState, Output
from airflow_provider_exactlyonce.checkpoint.manifest import Savepoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition, by_partition
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.ledger.source_clusters import SourceClusters
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics
from airflow_provider_exactlyonce.polling import poll_until

#: So long is waited for the transactions that are open before the end of a range.
_DECIDED_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.5
#: {(topic, partition): offset}
Positions = dict[TopicPartition, int]


@dataclass(frozen=True, kw_only=True)
class Span:
    """A range of the source.

    :param starts: where it begins in each partition that it reads
    :param ends: where it ends, exclusive; the same partitions
    :param commits: first and last, of a range of whole commits
    """

    starts: Positions
    ends: Positions
    commits: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Resolved(Span):
    """A range of the source, and where the run begins.

    :param begins: where the run begins in the source: before the range, where state has to be made
    :param unseen: partitions of the range that the state which it begins with has not seen, and where their logs begin
    :param savepoint: whose state it begins with, None for none
    :param base_commit: the commit whose state it begins with; 0 for none
    :param newest_commit: the newest one when it was resolved: batches are cut as the commits up to it were, whatever
        was committed since; None of a range that an older release has resolved
    """

    begins: Positions
    unseen: Positions = field(default_factory=dict)
    savepoint: str | None = None
    base_commit: int = 0
    newest_commit: int | None = None

    def writes_the_same(self, other: Resolved) -> bool:
        """Tell whether another one covers the same range in the same batches, wherever its state comes from."""
        batches = attrgetter("starts", "ends", "commits", "newest_commit")
        return bool(batches(self) == batches(other))

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "starts": positions_to_json(self.starts),
            "ends": positions_to_json(self.ends),
            "begins": positions_to_json(self.begins),
            "unseen": positions_to_json(self.unseen),
            "commits": list(self.commits) if self.commits else None,
            "savepoint": self.savepoint,
            "base_commit": self.base_commit,
            **({} if self.newest_commit is None else {"newest_commit": self.newest_commit}),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read the result of :meth:`to_json`.

        :raises RefusedError: when it can't be read
        """
        positions = {name: positions_from_json(body[name]) for name in ("starts", "ends", "begins", "unseen")}
        return codec.load(cls, {**body, **positions}, "what a backfill's request meant")


def positions_to_json(positions: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return positions as JSON values."""
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        by_topic.setdefault(topic, {})[str(partition)] = offset
    return by_topic


def positions_from_json(body: Mapping[str, Mapping[str, int]]) -> Positions:
    """Read the result of :func:`positions_to_json`."""
    return {(topic, int(partition)): offset for topic, offsets in body.items() for partition, offset in offsets.items()}


class Resolver:
    """Resolves requests by the ledger and the topics as they are now.

    :param reader: of the pipeline's ledger
    :param clusters: those that the pipeline's sources are read from
    :param sources: the topics of each source
    :param savepoints: the pipeline's own
    :raises RefusedError: when a source was read from another cluster
    """

    def __init__(
        self, reader: LedgerReader, clusters: SourceClusters, sources: Sequence[SourceTopics], savepoints: Savepoints
    ) -> None:
        tail = reader.tail()
        clusters.check(tail, sources)
        self._reader: Final = reader
        self._offsets: Final = clusters.offsets
        self._savepoints: Final = savepoints
        topics = sorted({topic for source in sources for topic in clusters.topics(source)})
        self._partitions: Final = self._offsets.partitions(topics)
        self._oldest = tail.place.oldest if tail is not None else 1
        self._newest = tail.place.commit if tail is not None else 0

    def span(self, request: BackfillRequest) -> Span:
        """Return the range, whether it can be run or not.

        :raises RefusedError: when the range is not there
        """
        commits = self._commits(request)
        if commits is None:
            starts, ends = self._bounds(request)
            if request.kind is not Output.COMPARE:
                return Span(starts=starts, ends=ends)
            commits = self._covering(starts, ends)
        starts, ends = self._source_of(*commits)
        return Span(starts=starts, ends=ends, commits=commits)

    def resolve(self, request: BackfillRequest, begun: Resolved | None = None) -> Resolved:
        """Return the range, and the state that it begins with.

        :param begun: as it was resolved for its first written batch, None for none: its batches stay as they are
        :raises RefusedError: when the range is not there, or its state can't be made
        """
        if begun is None:
            resolved = replace(self._with_base(request, self.span(request)), newest_commit=self._newest)
        elif request.state is BackfillState.EMPTY:
            resolved = begun
        else:
            resolved = replace(self._with_base(request, begun), newest_commit=begun.newest_commit)
        self._check_input(resolved)
        return resolved

    def _check_input(self, resolved: Resolved) -> None:
        """Check that all that is read is there.

        :raises RefusedError: naming the first source records that are not
        """
        first, stable = self._offsets.starts(self._partitions), self._stable()
        for topic_partition, end in sorted(resolved.ends.items()):
            topic, partition = topic_partition
            begin = resolved.begins.get(topic_partition, resolved.starts[topic_partition])
            missing_end = min(end, first.get(topic_partition, end))  # of a topic that was deleted all is gone
            if missing_end > begin:
                raise RefusedError(
                    f"source records that the backfill reads are gone: {topic}-{partition}, offsets {begin} to "
                    f"{missing_end - 1}. Choose a later range, and keep the source's records longer"
                )
            if end > stable.get(topic_partition, end):
                raise RefusedError(
                    f"the range ends at offset {end} of {topic}-{partition}, and what is committed there ends at "
                    f"{stable[topic_partition]}"
                )

    # -- ranges ---------------------------------------------------------------------------------------------------

    def _commits(self, request: BackfillRequest) -> tuple[int, int] | None:
        """Return the commits of a range that is made of whole ones."""
        if request.watermark is not None:
            return self._by_watermark(*request.watermark)
        if request.commits is None:
            return None
        first, last = request.commits
        if not self._oldest <= first <= last <= self._newest:
            raise RefusedError(f"commits {first}..{last}: the ledger of {self._reader.pipeline} has {self._has()}")
        return first, last

    def _by_watermark(self, start: int, end: int) -> tuple[int, int]:
        base = last = newest = 0
        for record in self._records():
            if base == 0 and record.watermark >= start:
                if 1 < record.commit == self._oldest:
                    raise self._forgotten(f"the commit that took the watermark to {moments.text(start)}")
                base = record.commit
            if record.watermark >= end:
                last = record.commit
                break
            newest = record.watermark
        else:
            raise RefusedError(
                f"the watermark of {self._reader.pipeline} has not reached {moments.text(end)}: it is at "
                f"{moments.text(newest) if newest else 'no time yet'}"
            )
        if base == last:
            raise RefusedError(
                f"commit {last} took the watermark past {moments.text(start)} and {moments.text(end)} at once: no "
                "commit lies between"
            )
        return base + 1, last

    def _forgotten(self, subject: str) -> RefusedError:
        return RefusedError(
            f"{subject} may be one that the ledger of {self._reader.pipeline} has forgotten: it has {self._has()}. "
            "Choose a later range, or keep more history with ledger_retention"
        )

    def _bounds(self, request: BackfillRequest) -> tuple[Positions, Positions]:
        """Return where a range of offsets or of time begins and ends."""
        if request.offsets is not None:
            spans = by_partition(request.offsets)
            for topic, partition in spans.keys() - set(self._partitions):
                raise RefusedError(f"{topic}-{partition} is no partition of a source of {self._reader.pipeline}")
            starts = {topic_partition: start for topic_partition, (start, _) in spans.items()}
            return starts, {topic_partition: end for topic_partition, (_, end) in spans.items()}
        start, end = request.time or (0, 0)
        if end > time.time() * 1000:
            raise RefusedError(
                f"the range ends at {moments.text(end)}, in the future: what belongs to it is not known yet"
            )
        # The logs' ends first: what is below them is older than the end where no record of its time is found behind.
        # What is committed last: a transaction that has ended meanwhile keeps nobody waiting.
        log_ends = self._offsets.ends(self._partitions)
        starts, ends = self._offsets_at(start, log_ends), self._offsets_at(end, log_ends)
        self._check_decided(ends)
        if (cut_off := self._cut_off(starts)) is not None:
            begin, log_is = starts[cut_off], f"the log of {cut_off[0]}-{cut_off[1]}"
            if begin == log_ends[cut_off]:
                raise RefusedError(
                    f"{log_is} is empty, and what was before its offset {begin} may have been of "
                    f"{moments.text(start)} or later: records of the range may be gone. Give the range by offsets, "
                    "without this partition"
                )
            raise RefusedError(
                f"{log_is} begins at offset {begin}, and what was before it may have been of {moments.text(start)} "
                "or later: records of the range may be gone. Choose a later start, or offsets"
            )
        return starts, ends

    def _cut_off(self, begins: Positions) -> TopicPartition | None:
        """Return a partition whose log begins at its offset of a time: what the log had before may have been later."""
        starts = self._offsets.starts(self._partitions).items()
        return next(
            (topic_partition for topic_partition, start in starts if 0 < start == begins[topic_partition]), None
        )

    def _offsets_at(self, milliseconds: int, log_ends: Positions) -> Positions:
        offsets = self._offsets.at_timestamp(self._partitions, milliseconds)
        return {partition: log_ends[partition] if offset is None else offset for partition, offset in offsets.items()}

    def _check_decided(self, ends: Positions) -> None:
        """Check that no open transaction keeps back records before the end: the next range begins behind them.

        :raises ExactlyOnceError: naming the first partition that has one; it will end
        """

        def undecided() -> list[tuple[TopicPartition, int]]:
            stable = self._stable()
            return [
                (topic_partition, stable[topic_partition])
                for topic_partition, end in sorted(ends.items())
                if end > stable[topic_partition]
            ]

        # Whatever opens later is behind the same ends.
        poll_until(lambda: not undecided(), seconds=_DECIDED_SECONDS, poll_seconds=_POLL_SECONDS)
        for (topic, partition), committed in undecided():
            raise ExactlyOnceError(
                f"the range goes to offset {ends[topic, partition]} of {topic}-{partition}, and what is committed "
                f"there ends at {committed}: a transaction is open. Start the backfill again when it has ended; "
                "`exactlyonce transactions list` shows whose it is"
            )

    def _covering(self, starts: Positions, ends: Positions) -> tuple[int, int]:
        """Return the commits that have read something of a range."""
        hits: list[int] = []
        for record in self._records():
            read = by_partition(record.source)
            if 1 < record.commit == self._oldest and any(
                starts.get(partition, begin) < begin for partition, (begin, _) in read.items()
            ):
                raise self._forgotten("the commit that has read the range's beginning")
            if any(
                max(begin, starts.get(partition, end)) < min(end, ends.get(partition, begin))
                for partition, (begin, end) in read.items()
            ):
                hits.append(record.commit)
        if not hits:
            raise RefusedError(
                f"no commit of {self._reader.pipeline} has read anything of the range: it has {self._has()}"
            )
        return hits[0], hits[-1]

    def _records(self, first: int = 1) -> Iterable[CommitRecord]:
        """Return the commits from a number on; none of a pipeline that has no ledger."""
        return self._reader.commits(first) if self._newest else ()

    def _stable(self) -> Positions:
        return self._offsets.last_stable(self._partitions)

    def _has(self) -> str:
        return f"{self._oldest} to {self._newest}" if self._newest else "none"

    # -- state ----------------------------------------------------------------------------------------------------

    def _with_base(self, request: BackfillRequest, span: Span) -> Resolved:
        """Return a range with the state that it begins with: of whole commits, that before the first one."""
        first = span.commits[0] if span.commits is not None else None
        resolved = partial(Resolved, starts=span.starts, ends=span.ends, commits=span.commits)
        if request.state is BackfillState.EMPTY:
            stable_offsets = self._stable() if first is None else {}
            return resolved(
                begins={**stable_offsets, **span.starts, **self._warm_up_before(request, span.starts, first)}
            )
        base = self._savepoint_before(span.starts, first)
        begins = by_partition(base.source) if base is not None else self._from_the_beginning(span.starts, first)
        unseen = self._offsets.starts(span.starts.keys() - begins.keys()) if first is None else {}
        if base is None:
            return resolved(begins=begins, unseen=unseen)
        return resolved(begins=begins, unseen=unseen, savepoint=base.id, base_commit=base.commit)

    def _savepoint_before(self, starts: Positions, first: int | None) -> Savepoint | None:
        """Return the newest whole savepoint before a commit, or before a range that does not begin with one."""
        newest = self._newest if first is None else first - 1
        for savepoint in reversed(self._savepoints.list()):
            fits = savepoint.pipeline == self._reader.pipeline and self._oldest - 1 <= savepoint.commit <= newest
            if fits and first is None:
                ends = by_partition(savepoint.source)
                fits = all(ends.get(partition, 0) <= start for partition, start in starts.items())
            if fits and not self._savepoints.verify(savepoint.id):
                return savepoint
        return None

    def _from_the_beginning(self, starts: Positions, first: int | None) -> Positions:
        """Return where the pipeline's first commit begins: before it there was no state."""
        subject = "the range" if first is None else f"commit {first}"
        if self._newest == 0 or self._oldest > 1:
            raise RefusedError(
                f"there is no savepoint before {subject} in {self._savepoints.directory}, and the ledger of "
                f"{self._reader.pipeline} has {self._has()}: the state that it began with can't be made. Begin with an "
                "empty one: state 'empty', with a warm_up if that is long enough"
            )
        begins = self._source_of(1, 1)[0]
        late = [
            topic_partition
            for topic_partition, start in starts.items()
            if first is None and begins.get(topic_partition, 0) > start
        ]
        if late:
            topic, partition = late[0]
            raise RefusedError(
                f"{self._reader.pipeline} began at offset {begins[late[0]]} of {topic}-{partition}, after the range's "
                f"start {starts[late[0]]}: there is no state before it. Begin with an empty one: state 'empty'"
            )
        return begins

    def _warm_up_before(self, request: BackfillRequest, starts: Positions, first: int | None) -> Positions:
        """Return where a warm-up begins; nothing when there is none."""
        if request.warm_up is None:
            return {}
        if isinstance(request.warm_up, timedelta):
            start = request.time[0] if request.time else 0
            warm_up_start = start - round(request.warm_up.total_seconds() * 1000)
            begins = self._offsets_at(warm_up_start, self._offsets.ends(self._partitions))
            if (cut_off := self._cut_off(begins)) is not None:
                raise RefusedError(
                    f"the log of {cut_off[0]}-{cut_off[1]} begins at offset {begins[cut_off]}, and what was before it "
                    f"may have been of {moments.text(warm_up_start)} or later: records of the warm-up may be gone. "
                    "Give a shorter warm_up"
                )
        else:
            last = first - 1 if first is not None else self._last_before(starts)
            if last + 1 - request.warm_up < self._oldest > 1:
                raise self._forgotten(f"the first of the {request.warm_up} commits of the warm-up")
            if last < self._oldest:
                return {}
            begins = self._source_of(max(self._oldest, last + 1 - request.warm_up), last)[0]
        return {partition: min(begins.get(partition, start), start) for partition, start in starts.items()}

    def _last_before(self, starts: Positions) -> int:
        """Return the last commit that ended before a range in every partition."""
        last = 0
        for record in self._records():
            if any(end > starts.get(partition, end) for partition, end in record.ends.items()):
                break
            last = record.commit
        return last

    def _source_of(self, first: int, last: int) -> tuple[Positions, Positions]:
        """Return where some commits begin and end in the source."""
        starts: Positions = {}
        ends: Positions = {}
        for record in self._records(first):
            if record.commit > last:
                break
            for partition, (start, end) in by_partition(record.source).items():
                starts.setdefault(partition, start)
                ends[partition] = end
        return starts, ends
