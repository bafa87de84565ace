"""The producer of a record: read from the headers of the log's batches, aborted and undecided ones too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.kafka.batch_headers import BatchHeader
    from airflow_provider_exactlyonce.kafka.wire import WireClient


class LogWriters:
    """Looks up batches by offset; quick where each offset is above the one before.

    :param client: connection to the cluster
    """

    def __init__(self, client: WireClient) -> None:
        self._client: Final = client
        self._fetched: dict[tuple[str, int], list[BatchHeader]] = {}

    def batch_at(self, topic: str, partition: int, offset: int) -> BatchHeader | None:
        """Return the batch that holds an offset; None when there is none, for compaction or deletion."""
        from airflow_provider_exactlyonce.kafka.batch_headers import read_headers

        place = topic, partition
        headers = self._fetched.get(place, [])
        if not headers or not headers[0].first <= offset <= headers[-1].last:
            headers = list(read_headers(self._client.fetch(topic, partition, offset)))
        while headers and headers[0].last < offset:
            headers.pop(0)
        self._fetched[place] = headers
        batch = headers[0] if headers else None
        return batch if batch is not None and batch.first <= offset else None
