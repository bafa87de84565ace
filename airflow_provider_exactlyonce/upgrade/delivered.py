"""Reads the rows of commits back from the sink, as an ordinary read_committed consumer."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from typing import Any

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka.batch_producers import BatchProducers
from airflow_provider_exactlyonce.kafka.range_reader import RangeReader, position_of
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition, by_partition
from airflow_provider_exactlyonce.kafka.wire import WireClient
from airflow_provider_exactlyonce.ledger.commit_range import RecordedCommits
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import SinkRange
from airflow_provider_exactlyonce.upgrade.comparison import Row, decode


def read(
    config: Mapping[str, Any], pipeline: str, first: int, last: int, *, leave_out: Collection[str] = ()
) -> list[Row]:
    """Return the rows of the commits ``first`` to ``last``, and none that others have written between them.

    :param config: client configuration in librdkafka's names
    :param leave_out: topics that are not read
    :raises RefusedError: when some are not readable any more
    """
    ranges: dict[TopicPartition, list[SinkRange]] = defaultdict(list)
    producer_ids = set()
    with closing(RecordedCommits(LedgerReader(config, pipeline), first, last)) as commits:
        for number in range(first, last + 1):
            record = commits.get(number)
            producer_ids.add(record.producer_id)
            for partition, sink_range in by_partition(record.sink).items():
                if partition[0] not in leave_out:
                    ranges[partition].append(sink_range)
    rows, spans = [], {partition: (parts[0].first, parts[-1].last + 1) for partition, parts in ranges.items()}
    with RangeReader(config, "delivered") as reader, WireClient(dict(config)) as client:
        producers = BatchProducers(client)
        for message in reader.read(spans):
            partition, offset = position_of(message)
            if _contains(ranges[partition], offset) and producers.is_of(producer_ids, partition, offset):
                key: Any = message.key()
                value: Any = message.value()
                rows.append(decode(partition[0], key, value))
    expected = sum(sink_range.rows for sink_ranges in ranges.values() for sink_range in sink_ranges)
    if len(rows) < expected:
        raise RefusedError(
            f"commits {first} to {last} of pipeline {pipeline} have delivered {expected:,} rows, and {len(rows):,} are "
            "readable: retention or compaction has removed the others, so nothing can be compared with them. Repeat "
            "fewer commits"
        )
    return rows


def _contains(ranges: Sequence[SinkRange], offset: int) -> bool:
    index = bisect_right(ranges, offset, key=lambda sink_range: sink_range.first) - 1
    return index >= 0 and offset <= ranges[index].last
