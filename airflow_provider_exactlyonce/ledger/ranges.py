"""A ledger's commits cut into ranges; each becomes one event.

The cuts depend on nothing but the ledger, so a range that is sent again, by whatever process, is the same and has
the same key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, Self

from airflow_provider_exactlyonce import codec, moments
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition, by_partition, by_topic
from airflow_provider_exactlyonce.ledger.gate_target import moment
from airflow_provider_exactlyonce.ledger.records import CommitRecord

#: Event-time partitions.
Unit = Literal["hour", "day"]

UNIT_MILLISECONDS: Final[Mapping[str, int]] = {"hour": 3_600_000, "day": 86_400_000}

#: Of a range. An event time of a far future, as 9999-12-31, completes 70 million hours; a year has 8,784.
_MOST_PARTITIONS: Final = 10_000

#: A topic's id is base64, whose "/" would make a key two names in a path.
_FOR_FILES: Final = str.maketrans("+/", "-_")

#: {topic: {partition: (start, end)}}, in JSON with texts for the partitions
Spans = dict[str, dict[int, tuple[int, int]]]


@dataclass(frozen=True, kw_only=True)
class CommittedRange:
    """Commits of a pipeline that follow each other.

    :param key: the same whenever the range is sent; may be the name of a file
    :param first: number of its first commit
    :param last: number of its last commit
    :param source: source offsets that went in, ``(start, end)``, end exclusive
    :param sink: sink offsets that came out, ``(first, last)``, last inclusive; aborted and other producers' records
        may lie between
    :param rows: records written to the sink
    :param watermark: event time up to which the output is complete, milliseconds since the epoch, 0 for none
    :param partitions: event-time partitions that are complete with it, by their beginnings in UTC, as in
        ``2026-01-31T13:00:00``; the first 10,000
    :param partitions_left_out: how many more follow them, complete as well
    :param lost: commits right before it that retention has deleted before they were sent, ``(first, last)``
    """

    key: str
    pipeline: str
    first: int
    last: int
    source: Spans
    sink: Spans
    rows: int
    watermark: int
    partitions: tuple[str, ...] = ()
    partitions_left_out: int = 0
    lost: tuple[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return JSON values from which :meth:`parse` makes an equal range; the watermark is a time in them, too."""
        values = json.loads(json.dumps(asdict(self)))
        return {**values, "watermark_time": moment(self.watermark) if self.watermark > 0 else None}

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Read the result of :meth:`to_json`; unknown fields are left out."""
        return codec.load(cls, values, "a committed range")


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The position after the last range, with the facts that the next range needs; small, to be stored.

    :param topic_id: of the ledger
    :param offset: in the ledger, of the commit
    :param watermark: the highest one so far
    """

    topic_id: str
    commit: int = 0
    offset: int = -1
    watermark: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return JSON values from which :meth:`parse` makes an equal cut."""
        return asdict(self)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Read the result of :meth:`to_json`."""
        return codec.load(cls, values, "the place of a ledger's reader")


@dataclass
class Cutter:
    """Cuts commits, as they come, into ranges.

    :param unit: None for each commit; else a range ends with each commit that completes an event-time partition
    :param cut: where the last one ended
    """

    unit: Unit | None
    cut: Cut
    _begun: list[CommitRecord] = field(default_factory=list)
    _watermark: int = field(init=False)

    def __post_init__(self) -> None:
        self._watermark = self.cut.watermark

    def take(self, commits: Iterable[tuple[int, CommitRecord]]) -> Iterator[tuple[CommittedRange, Cut]]:
        """Take the next commits with their offsets in the ledger; yields each range that they end, and the cut."""
        for offset, record in commits:
            previous_watermark, self._watermark = self._watermark, max(self._watermark, record.watermark)
            completed = _completed(self.unit, previous_watermark, self._watermark)
            self._begun.append(record)
            if self.unit is not None and not completed:
                continue
            committed_range = self._range(completed)
            self.cut = Cut(topic_id=self.cut.topic_id, commit=record.commit, offset=offset, watermark=self._watermark)
            self._begun = []
            yield committed_range, self.cut

    def _range(self, completed: range) -> CommittedRange:
        first, last = self._begun[0], self._begun[-1]
        source: dict[TopicPartition, tuple[int, int]] = {}
        sink: dict[TopicPartition, tuple[int, int]] = {}
        for record in self._begun:
            _extend(source, by_partition(record.source))
            _extend(
                sink,
                {partition: (written.first, written.last) for partition, written in by_partition(record.sink).items()},
            )
        next_commit = self.cut.commit + 1
        ledger = self.cut.topic_id.translate(_FOR_FILES)
        return CommittedRange(
            key=f"{last.pipeline}.{ledger}.{self.unit or 'commit'}.{last.commit}",
            pipeline=last.pipeline,
            first=first.commit,
            last=last.commit,
            source=by_topic(source),
            sink=by_topic(sink),
            rows=sum(record.rows for record in self._begun),
            watermark=self._watermark,
            partitions=tuple(moments.text(start).removesuffix("+00:00") for start in completed[:_MOST_PARTITIONS]),
            partitions_left_out=max(0, len(completed) - _MOST_PARTITIONS),
            lost=(next_commit, first.commit - 1) if first.commit > next_commit else None,
        )


def _completed(unit: Unit | None, previous: int, watermark: int) -> range:
    """Return the beginnings of the partitions that end at or before a watermark, and not before the one before it."""
    if unit is None or watermark <= 0:
        return range(0)
    length = UNIT_MILLISECONDS[unit]
    end = watermark // length
    start = previous // length if previous > 0 else end - 1  # which the first one was can't be known
    return range(start * length, end * length, length)


def _extend(spans: dict[TopicPartition, tuple[int, int]], additions: Mapping[TopicPartition, tuple[int, int]]) -> None:
    for partition, (start, end) in additions.items():
        known = spans.get(partition, (start, end))
        spans[partition] = min(known[0], start), max(known[1], end)
