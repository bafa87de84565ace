"""Whether a pipeline's output is readable up to a point, judged from its ledger and the sink's last stable offsets.

A gate is open when both hold: the ledger, read at read_committed, has a commit that meets the target; and in every sink
partition the last stable offset has passed everything that was written up to that commit. The second is not implied by
the first: the broker decides a transaction once and then marks each partition by itself, and somebody else's open
transaction on the same partition hides our records although they are committed.

What is committed only grows, so an open gate never closes. A *timestamp* is turned into source offsets once, the first
time that its moment has passed and the pipeline has a commit: per partition the first record with that timestamp or a
later one; where there is none, the partition's end at that moment (records in undecided transactions count). The
verdict carries the resolved target, and callers go on with it: asked again, a partition without newer records would
give a later end each time, and a gate on a topic that gets old records might never open. A caller that forgets it
waits longer, never shorter. Records that arrive late, behind a newer one in their partition, are not waited for; a
watermark is for that.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self

from airflow_provider_exactlyonce.kafka.stable_offsets import Place, StableOffsets
from airflow_provider_exactlyonce.ledger.reader import LedgerReader, LedgerTail
from airflow_provider_exactlyonce.ledger.records import CommitRecord, ledger_topic

#: Offsets of the ledger that are searched for the commit that first met the target and for what older commits wrote.
#: Our own older transactions are certainly marked everywhere: the next batch could not have begun otherwise.
_WINDOW: Final = 1024
_SHOWN: Final = 5
_EARLIEST_MILLISECONDS: Final = 100_000_000_000  # 1973; a smaller number is seconds by mistake

#: {topic: {partition: offset}}, the offset after the last record
Offsets = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, kw_only=True)
class GateTarget:
    """Up to where a pipeline's output must be readable; exactly one of the four is set.

    :param commit: number of a commit
    :param watermark: event time, milliseconds since the epoch
    :param offsets: source offsets; everything before them must be in a commit
    :param timestamp: milliseconds since the epoch; every source record before the first one of this time or later
    :raises ValueError: when not exactly one is set
    """

    commit: int | None = None
    watermark: int | None = None
    offsets: Offsets | None = None
    timestamp: int | None = None

    def __post_init__(self) -> None:
        given = [name for name, value in vars(self).items() if value is not None]
        if len(given) != 1:
            raise ValueError(
                f"a gate has exactly one of commit, watermark, offsets, timestamp; given: {', '.join(given) or 'none'}"
            )

    @classmethod
    def parse(
        cls,
        *,
        commit: int | str | None = None,
        watermark: datetime | str | int | None = None,
        offsets: Mapping[str, Mapping[Any, Any]] | str | None = None,
        timestamp: datetime | str | int | None = None,
    ) -> Self:
        """Read a target as people and rendered templates write it.

        :param watermark: a time of day without a zone is UTC; a number is milliseconds since the epoch
        :param offsets: a mapping, or the same as JSON
        :raises ValueError: naming the value that can't be read
        """
        return cls(
            commit=None if commit is None else _number("commit", commit),
            watermark=None if watermark is None else _milliseconds("watermark", watermark),
            offsets=None if offsets is None else _offsets(offsets),
            timestamp=None if timestamp is None else _milliseconds("timestamp", timestamp),
        )

    def to_json(self) -> dict[str, Any]:
        """Return JSON values from which :meth:`parse` makes an equal target; they are the same after that."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        if self.offsets is not None:
            values["offsets"] = {
                topic: {str(partition): offset for partition, offset in partitions.items()}
                for topic, partitions in self.offsets.items()
            }
        return values

    def missing(self, newest: CommitRecord) -> list[str]:
        """Say what the ledger lacks, by its newest commit; empty when it has everything."""
        if self.commit is not None:
            short = self.commit - newest.commit
            return [f"commit {newest.commit} of {self.commit}: {short} missing"] if short > 0 else []
        if self.watermark is not None:
            return _missing_watermark(self.watermark, newest)
        if self.offsets is not None:
            return _missing_offsets(self.offsets, newest)
        raise ValueError("a timestamp has to be resolved to offsets first")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer of one look.

    :param missing: what is missing and by how much, empty when the gate is open
    :param commit: the pipeline's newest commit, 0 for none
    :param target: what to ask with the next time; a timestamp that could be resolved is offsets now
    """

    open: bool
    missing: str
    commit: int
    target: GateTarget


def check(config: Mapping[str, Any], pipeline: str, target: GateTarget) -> Verdict:
    """Look once. Blocks for some tens of milliseconds; joins no group and commits nothing.

    :param config: client configuration in librdkafka's names; ``bootstrap.servers`` is required
    :raises ExactlyOnceError: when the cluster doesn't answer, or a topic that was written does not exist any more
    """
    with LedgerReader(config, pipeline) as reader:
        tail = reader.tail()
        commit = tail.place.commit if tail is not None else 0
        problems, target = _look(config, reader, tail, target)
    return Verdict(open=not problems, missing=_listed(problems), commit=commit, target=target)


def _look(
    config: Mapping[str, Any], reader: LedgerReader, tail: LedgerTail | None, target: GateTarget
) -> tuple[list[str], GateTarget]:
    if tail is None:
        return [f"pipeline {reader.pipeline} has no ledger yet (topic {ledger_topic(reader.pipeline)})"], target
    if target.commit == 0:
        return [], target  # an empty source: there is nothing to wait for
    if tail.commit is None:
        return [f"pipeline {reader.pipeline} has committed nothing yet"], target
    offsets = StableOffsets(config)
    if target.timestamp is not None:
        ahead = target.timestamp - int(time.time() * 1000)
        if ahead > 0:
            return [f"timestamp {_moment(target.timestamp)} is still {_span(ahead)} ahead"], target
        target = GateTarget(offsets=_resolved(offsets, tail.commit, target.timestamp))
    problems = target.missing(tail.commit) or _unreadable(offsets, _written(reader, tail, target))
    return problems, target


def _resolved(offsets: StableOffsets, newest: CommitRecord, milliseconds: int) -> Offsets:
    places = offsets.partitions(newest.source)
    # The ends first: a record that arrives in between is then either waited for or behind the moment, never forgotten.
    ends = offsets.ends(places)
    found = offsets.at_timestamp(places, milliseconds)
    target: dict[str, dict[int, int]] = {}
    for place in places:
        first = found[place]
        target.setdefault(place[0], {})[place[1]] = ends[place] if first is None else first
    return target


def _written(reader: LedgerReader, tail: LedgerTail, target: GateTarget) -> dict[Place, int]:
    """Return the last offset per sink partition that was written up to the first commit that meets the target.

    When that commit is older than what is searched, everything that was searched has to be readable instead.
    """
    last: dict[Place, int] = {}
    start = max(0, tail.commit_offset - _WINDOW)
    is_first = start == 0  # whether a commit that meets the target is certainly the first one
    for offset, record in reader.records(start):
        if offset > tail.commit_offset:
            break
        if isinstance(record, CommitRecord):
            for topic, ranges in record.sink.items():
                last.update({(topic, partition): written.last for partition, written in ranges.items()})
            if target.missing(record):
                is_first = True
            elif is_first or record.commit == target.commit:
                break
    return last


def _unreadable(offsets: StableOffsets, last: Mapping[Place, int]) -> list[str]:
    stable = offsets.last_stable(last)
    return [
        f"{topic}-{partition}: last stable offset {stable[topic, partition]} has not passed {offset}"
        for (topic, partition), offset in sorted(last.items())
        if stable[topic, partition] <= offset
    ]


def _missing_watermark(wanted: int, newest: CommitRecord) -> list[str]:
    if newest.watermark <= 0:
        return [
            f"commit {newest.commit} has no watermark; a job without withWatermark() never has one, "
            "and the first batches of a stream have none"
        ]
    short = wanted - newest.watermark
    if short <= 0:
        return []
    return [f"watermark {_moment(newest.watermark)} is {_span(short)} short of {_moment(wanted)}"]


def _missing_offsets(wanted: Offsets, newest: CommitRecord) -> list[str]:
    problems = []
    for topic, partitions in sorted(wanted.items()):
        for partition, offset in sorted(partitions.items()):
            committed = newest.source.get(topic, {}).get(partition)
            if committed is None:
                problems.append(f"{topic}-{partition}: commit {newest.commit} does not read it, {offset} wanted")
            elif committed[1] < offset:
                problems.append(f"{topic}-{partition}: committed up to {committed[1]} of {offset}")
    return problems


def _number(name: str, value: object) -> int:
    try:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError
        number = int(value)
        if number < 0:
            raise ValueError
    except ValueError:
        raise ValueError(f"{name}={value!r} is not a whole number from 0 on") from None
    return number


def _milliseconds(name: str, value: datetime | str | int) -> int:
    if isinstance(value, str) and not value.strip().isdigit():
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            raise ValueError(f"{name}={value!r} is neither a time in ISO 8601 nor a number") from None
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return round(aware.timestamp() * 1000)
    number = _number(name, value)
    if number < _EARLIEST_MILLISECONDS:
        raise ValueError(f"{name}={value!r} must be milliseconds since the epoch; {number} would be {_moment(number)}")
    return number


def _offsets(value: Mapping[str, Mapping[Any, Any]] | str) -> Offsets:
    wrong = ValueError(f"offsets={value!r} is not {{topic: {{partition: offset}}}} with at least one partition")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise wrong from None
    if not isinstance(value, Mapping) or not all(isinstance(part, Mapping) and part for part in value.values()):
        raise wrong
    read = {
        str(topic): {
            _number(f"partition of {topic}", partition): _number(f"offset of {topic}-{partition}", offset)
            for partition, offset in partitions.items()
        }
        for topic, partitions in value.items()
    }
    if not read:
        raise wrong
    return read


def _listed(problems: list[str]) -> str:
    more = len(problems) - _SHOWN
    return "; ".join(problems[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _moment(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds" if milliseconds % 1000 else "seconds").replace("+00:00", "Z")


def _span(milliseconds: int) -> str:
    seconds = milliseconds / 1000
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} days"
