"""Where a pipeline has written, as far as readers may not see it yet: found in its ledger, from its end backwards.

The newest commits are read whole: the *window*. Older commits' rows are nearly always readable, and their records need
no reading: a sink partition with its last stable offset at its high watermark hides none of them. For a partition that
is held (some transaction is open there), and that the window lacks, the ledger is searched on, page by page, down to
the newest commit that wrote to it. If the ledger does not have that offset, the partition counts as written up to its
end: retention may have deleted the commits, they may lack offsets (at least once), or be too many to search.

Each answer stays true: readable rows remain readable, and a commit never changes. So the result for older commits is
kept, and the next search ends there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from airflow_provider_exactlyonce.kafka.stable_offsets import StableOffsets
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition, by_partition
from airflow_provider_exactlyonce.ledger.gate_target import GateTarget
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import CommitRecord

#: Offsets of the ledger that are read from its end, at most; a commit takes two.
WINDOW: Final = 1024
#: Offsets of the ledger that are searched below the window; so many are read in a second or two.
_FARTHEST: Final = 131_072
_GROWTH: Final = 8


@dataclass(frozen=True, kw_only=True)
class LastOffset:
    """Up to where a sink partition has to be readable.

    :param offset: the last one, -1 for nothing
    :param unknown_before: it is the partition's end when it was asked for, because what commits before this one wrote
        is not known; None when the ledger tells it
    """

    offset: int
    unknown_before: int | None = None


_NOTHING: Final = LastOffset(offset=-1)


class WrittenOffsets:
    """Where the commits of one ledger have written.

    :param window: offsets of the ledger that are read whole, at most
    """

    def __init__(self, reader: LedgerReader, offsets: StableOffsets, window: int = WINDOW) -> None:
        self._reader: Final = reader
        self._offsets: Final = offsets
        self._window: Final = window
        self._start = 0
        self._older: _Older | None = None

    def up_to(
        self, offset: int, targets: Mapping[str, GateTarget], all_of: Collection[str]
    ) -> dict[str, dict[TopicPartition, LastOffset]]:
        """Return by gate the last offset per sink partition that was written up to the commit that met its target.

        That is the first of the newest commits that all meet it: after a restore that writes output again, older ones
        may have met it before. When all of the window meet it, it may be older, and the window's first one is taken.

        :param offset: of the newest commit, which meets all targets
        :param all_of: gates for which everything has to be readable
        :raises MissingPartitionError: when a sink partition went away meanwhile
        """
        if not targets and not all_of:
            return {}
        if offset - self._start >= self._window:
            self._start = offset - self._window // 2  # it stays for a while, and so does the result for older commits
        window = _Window(targets)
        for _, record in self._reader.records(self._start, offset + 1):
            if isinstance(record, CommitRecord):
                window.add(record)
        wanted = {**window.met, **dict.fromkeys(all_of, window.all)}
        last_offsets = {name: window.last_offsets(wrote) for name, wrote in wanted.items()}
        for name, hidden in self._untold(wanted).items():
            last_offsets[name] = _latest(last_offsets[name], hidden)
        if window.first > 1:
            older = self._older_than(window).search(self._reader, last_offsets.values(), self._window)
            last_offsets = {name: _latest(offsets, older) for name, offsets in last_offsets.items()}
        return last_offsets

    def _untold(self, wanted: Mapping[str, _Wrote]) -> dict[str, dict[TopicPartition, LastOffset]]:
        """Return by gate where partitions end that are held, in topics of commits that don't tell where they wrote."""
        topics = {topic for wrote in wanted.values() for topic in wrote.untold}
        ends = self._held(topics).ends if topics else {}
        return {
            name: {
                partition: LastOffset(offset=end - 1, unknown_before=wrote.untold[partition[0]] + 1)
                for partition, end in ends.items()
                if partition[0] in wrote.untold
            }
            for name, wrote in wanted.items()
        }

    def _older_than(self, window: _Window) -> _Older:
        """Return the writes of the commits below the window."""
        previous = self._older
        if previous is not None and previous.end_offset == self._start:
            return previous
        topics = window.topics | (previous.topics if previous is not None else set())
        if not window.tells_all_topics:  # written by an older release, or by several backfills
            first = max(previous.end_offset if previous is not None else 0, self._start - _FARTHEST)
            for _, record in self._reader.records(first, self._start):
                if isinstance(record, CommitRecord):
                    topics |= _topics(record)
        held = self._held(topics)
        self._older = _Older(end_offset=self._start, first=window.first, topics=topics, held=held, previous=previous)
        return self._older

    def _held(self, topics: Iterable[str]) -> _Hidden:
        """Look which partitions of topics are held; one that does not exist any more holds nothing."""
        described = self._offsets.describe(topics)
        partitions = [(name, number) for name, topic in described.items() for number in topic.partitions]
        # The ends first: rows before them are readable when the last stable offset has come as far, be it later.
        ends = self._offsets.ends(partitions)
        stable = self._offsets.last_stable(partitions)
        return _Hidden(
            partitions=frozenset(partitions),
            ends={partition: end for partition, end in ends.items() if stable[partition] < end},
            topic_ids={name: topic.topic_id for name, topic in described.items()},
        )


@dataclass(frozen=True)
class _Wrote:
    """The offsets that some commits wrote, up to a commit.

    :param last: {partition: (last offset, id of its topic)} as far as the records have them
    :param untold: {topic: newest commit} of the commits without offsets
    """

    last: Mapping[TopicPartition, tuple[int, str | None]] = field(default_factory=dict)
    untold: Mapping[str, int] = field(default_factory=dict)

    def and_then(self, record: CommitRecord) -> _Wrote:
        last, untold = _last_written(record), _untold_topics(record)
        if not last and not untold:
            return self
        return _Wrote({**self.last, **last}, {**self.untold, **dict.fromkeys(untold, record.commit)})


class _Window:
    """The newest commits.

    :param targets: the targets to meet, by gate
    """

    def __init__(self, targets: Mapping[str, GateTarget]) -> None:
        self._targets: Final = targets
        self._topic_ids: dict[str, str] = {}
        self.first = 0
        self.topics: set[str] = set()
        self.tells_all_topics = False
        self.all = _Wrote()
        #: By gate, the writes up to the first of the newest commits that all meet its target.
        self.met: dict[str, _Wrote] = {}

    def add(self, record: CommitRecord) -> None:
        self.first = self.first or record.commit
        self.topics |= _topics(record)
        self.tells_all_topics = 0 < record.sink_topics_since <= record.before.oldest
        self._topic_ids.update(record.sink_topic_ids)
        self.all = self.all.and_then(record)
        for name, target in self._targets.items():
            if name in self.met and target.commit is not None:
                continue  # it does not go back
            if target.missing(record):
                self.met.pop(name, None)
            else:
                self.met.setdefault(name, self.all)

    def last_offsets(self, wrote: _Wrote) -> dict[TopicPartition, LastOffset]:
        """Return the last offsets, without topics that were made anew before a later commit."""
        return {
            partition: LastOffset(offset=offset)
            for partition, (offset, topic_id) in wrote.last.items()
            if topic_id is None or self._topic_ids.get(partition[0], topic_id) == topic_id
        }


@dataclass(frozen=True, kw_only=True)
class _Hidden:
    """Which partitions hid something from readers at one moment.

    :param partitions: all that were read
    :param ends: where those ended that did
    :param topic_ids: {topic: id}
    """

    partitions: frozenset[TopicPartition]
    ends: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str]


class _Older:
    """The writes of the commits below an offset of the ledger that readers may not see yet.

    :param end_offset: the offset
    :param first: the number of the first commit that is not below it
    :param topics: all that the commits below it have written to
    :param held: partitions of these topics, read after those commits
    :param previous: the same of a lower offset
    """

    def __init__(
        self, *, end_offset: int, first: int, topics: set[str], held: _Hidden, previous: _Older | None
    ) -> None:
        self.end_offset, self.first, self.topics, self._held = end_offset, first, topics, held
        self._previous: _Older | None = previous
        if previous is not None:
            previous._previous = None  # partitions that it lacks are searched for without it
        self._last_offsets: dict[TopicPartition, LastOffset] = {}

    def search(
        self, reader: LedgerReader, newer: Iterable[Mapping[TopicPartition, LastOffset]], span: int
    ) -> dict[TopicPartition, LastOffset]:
        """Return the last offsets in partitions that hide something.

        :param newer: newer commits' writes, by gate; partitions that any gate lacks are searched for
        :param span: offsets of the ledger to be read first; each time more
        """
        lacking = {partition for offsets in newer for partition in self._held.ends.keys() - offsets.keys()}
        remaining = lacking - self._last_offsets.keys()
        end, number = self.end_offset, self.first
        farthest = max(0, end - _FARTHEST)
        unknown_before: int | None = None
        while remaining:
            known = self._known_by_previous(end, number, remaining)
            if not known and number == 1:
                known = dict.fromkeys(remaining, _NOTHING)
            elif not known and unknown_before is None and end > farthest:
                start = max(farthest, end - span)
                if self._previous is not None and start < self._previous.end_offset < end:
                    start = self._previous.end_offset
                known, number, unknown_before = self._read(reader, range(start, end), remaining, number)
                end, span = start, span * _GROWTH
            elif not known:
                first_known, ends = unknown_before or number, self._held.ends
                known = {
                    partition: LastOffset(offset=ends[partition] - 1, unknown_before=first_known)
                    for partition in remaining
                }
            self._last_offsets.update(known)
            remaining -= known.keys()
        return self._last_offsets

    def _known_by_previous(
        self, end: int, number: int, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, LastOffset]:
        """Return the last offsets that were found when the commits up to here were the only known ones."""
        previous = self._previous
        if previous is None or previous.end_offset != end or previous.first != number:
            return {}
        known = {
            **dict.fromkeys(previous._held.partitions - previous._held.ends.keys(), _NOTHING),
            **previous._last_offsets,
        }
        previous_ids, current_ids = previous._held.topic_ids, self._held.topic_ids
        return {
            partition: last if previous_ids[partition[0]] == current_ids[partition[0]] else _NOTHING  # made anew since
            for partition, last in known.items()
            if partition in partitions
        }

    def _read(
        self, reader: LedgerReader, offsets: range, partitions: set[TopicPartition], number: int
    ) -> tuple[dict[TopicPartition, LastOffset], int, int | None]:
        """Read a part of the ledger.

        :param number: of the first commit behind it
        :return: the writes found; the number of the first commit read; the commit before which something is unknown
        """
        last_offsets: dict[TopicPartition, LastOffset] = {}
        unknown_before: int | None = None
        first, previous_commit = number, 0
        for _, record in reader.records(offsets.start, offsets.stop):
            if not isinstance(record, CommitRecord):
                continue
            if previous_commit == 0:
                first = record.commit
            if previous_commit not in (0, record.commit - 1) or _untold_topics(record):
                last_offsets.clear()  # there may be something newer without a record
                unknown_before = record.commit + record.lacks_offsets
            previous_commit = record.commit
            for partition, (offset, topic_id) in _last_written(record).items():
                if partition in partitions:
                    is_there = topic_id is None or topic_id == self._held.topic_ids[partition[0]]
                    last_offsets[partition] = LastOffset(offset=offset) if is_there else _NOTHING
        if previous_commit not in (0, number - 1):
            return {}, first, number
        return last_offsets, first, unknown_before


def _last_written(record: CommitRecord) -> dict[TopicPartition, tuple[int, str | None]]:
    return {
        partition: (written.last, record.sink_topic_ids.get(partition[0]))
        for partition, written in by_partition(record.sink).items()
        if written.rows > 0
    }


def _untold_topics(record: CommitRecord) -> Collection[str]:
    return record.sink_topic_ids.keys() if record.lacks_offsets and record.rows + record.bad_records > 0 else ()


def _topics(record: CommitRecord) -> set[str]:
    return {*record.sink, *record.sink_topic_ids, *record.earlier_sink_topics, *record.former_sink_topics}


def _latest(
    offsets: Mapping[TopicPartition, LastOffset], other: Mapping[TopicPartition, LastOffset]
) -> dict[TopicPartition, LastOffset]:
    """Merge two maps to the later offset of each partition, without partitions in which nothing was written."""
    joined = dict(offsets)
    for partition, last in other.items():
        if last.offset > joined.get(partition, _NOTHING).offset:
            joined[partition] = last
    return joined
