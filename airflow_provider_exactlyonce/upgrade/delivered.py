"""What commits have delivered, read back from the sink by an ordinary read_committed consumer."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka.range_reader import RangeReader
from airflow_provider_exactlyonce.ledger.commit_range import RecordedCommits
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.upgrade.comparison import Row, decode


def read(
    config: Mapping[str, Any], pipeline: str, first: int, last: int, *, leave_out: Collection[str] = ()
) -> list[Row]:
    """Return the rows of the commits ``first`` to ``last``.

    :param config: client configuration in librdkafka's names
    :param leave_out: topics that are not read
    :raises RefusedError: when some are not readable any more
    """
    commits = RecordedCommits(LedgerReader(config, pipeline), first, last)
    try:
        records = [commits.get(number) for number in range(first, last + 1)]
    finally:
        commits.close()
    ranges = _ranges(records, leave_out)
    rows, spans = [], {place: (of[0][0], of[-1][1] + 1) for place, of in ranges.items()}
    with RangeReader(config, "delivered") as reader:
        for message in reader.read(spans):
            topic, partition = str(message.topic()), int(message.partition() or 0)
            if _contains(ranges[topic, partition], int(message.offset() or 0)):
                key: Any = message.key()
                value: Any = message.value()
                rows.append(decode(topic, key, value))
    expected = sum(
        of.rows
        for record in records
        for topic, parts in record.sink.items()
        if topic not in leave_out
        for of in parts.values()
    )
    if len(rows) < expected:
        raise RefusedError(
            f"commits {first} to {last} of pipeline {pipeline} have delivered {expected:,} rows, and {len(rows):,} are "
            "readable: retention or compaction has removed the others, so nothing can be compared with them. Repeat "
            "fewer commits"
        )
    return rows


def _ranges(
    records: Sequence[CommitRecord], leave_out: Collection[str]
) -> dict[tuple[str, int], list[tuple[int, int]]]:
    ranges: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for record in records:
        for topic, partitions in record.sink.items():
            if topic not in leave_out:
                for partition, of in partitions.items():
                    ranges.setdefault((topic, partition), []).append((of.first, of.last))
    return ranges


def _contains(ranges: list[tuple[int, int]], offset: int) -> bool:
    place = bisect_right(ranges, offset, key=lambda span: span[0]) - 1
    return place >= 0 and offset <= ranges[place][1]
