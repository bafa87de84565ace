"""The producer of a record: read from the headers of the log's batches, aborted and undecided ones too."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.kafka.batch_headers import BatchHeader
    from airflow_provider_exactlyonce.kafka.wire import WireClient


class BatchProducers:
    """Looks up batches by offset; quick where each offset is above the one before.

    :param client: connection to the cluster
    """

    def __init__(self, client: WireClient) -> None:
        self._client: Final = client
        self._fetched: dict[TopicPartition, list[BatchHeader]] = {}

    def batch_at(self, partition: TopicPartition, offset: int) -> BatchHeader | None:
        """Return the batch that holds an offset; None when there is none, for compaction or deletion."""
        from airflow_provider_exactlyonce.kafka.batch_headers import read_headers

        headers = self._fetched.get(partition, [])
        if not headers or not headers[0].first <= offset <= headers[-1].last:
            headers = list(read_headers(self._client.fetch(*partition, offset)))
        while headers and headers[0].last < offset:
            headers.pop(0)
        self._fetched[partition] = headers
        return headers[0] if headers and headers[0].first <= offset else None

    def is_of(self, producer_ids: Collection[int], partition: TopicPartition, offset: int) -> bool:
        """Whether a record is of a transaction of one of these producers."""
        batch = self.batch_at(partition, offset)
        return batch is not None and batch.is_transactional and batch.producer_id in producer_ids


def producer_of(batch: BatchHeader | None) -> str:
    """Return the producer of a batch, for messages."""
    return f"producer {batch.producer_id}, epoch {batch.epoch}" if batch else "an unknown producer"
