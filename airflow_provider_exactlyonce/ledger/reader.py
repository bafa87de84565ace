"""Reads a ledger at read_committed, from its end.

Used by both halves; confluent_kafka is imported when a reader is made, not when this module is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self, TypeVar

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.kafka.answers import answer_of
from airflow_provider_exactlyonce.kafka.config import for_confluent
from airflow_provider_exactlyonce.kafka.range_reader import RangeReader
from airflow_provider_exactlyonce.kafka.reach import unanswered
from airflow_provider_exactlyonce.kafka.stable_offsets import StableOffsets
from airflow_provider_exactlyonce.ledger.records import (
    ClaimRecord,
    CommitRecord,
    LedgerPointer,
    Record,
    decode,
    ledger_topic,
)

R = TypeVar("R", CommitRecord, ClaimRecord)

_FIRST_WINDOW: Final = 16
_TIMEOUT_SECONDS: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class LedgerTail:
    """The end of a ledger, as of one read.

    :param topic_id: id of the ledger topic
    :param end_offset: the last stable offset up to which was read
    :param claim: the newest claim, None when there is none
    :param commit: the newest commit, None when there is none
    """

    cluster_id: str
    topic_id: str
    end_offset: int
    claim: ClaimRecord | None = None
    claim_offset: int = -1
    commit: CommitRecord | None = None
    commit_offset: int = -1

    @property
    def place(self) -> LedgerPointer:
        """The pointer to the newest commit and claim, which the next record has to repeat."""
        newest: Record | None = self.commit if self.commit_offset > self.claim_offset else self.claim
        return LedgerPointer(
            commit=self.commit.commit if self.commit else 0,
            commit_offset=self.commit_offset,
            run=self.claim.run if self.claim else 0,
            run_offset=self.claim_offset,
            oldest=newest.before.oldest if newest else 1,
        )


class LedgerConnections:
    """The clients with which ledgers of one cluster are read, one after the other.

    :param config: client configuration in librdkafka's names; ``bootstrap.servers`` is required
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        from confluent_kafka.admin import AdminClient

        self.admin: Final = AdminClient(for_confluent(config))
        self.offsets: Final = StableOffsets(config)
        self.records: Final = RangeReader(
            config, "ledger", settings={"auto.offset.reset": "error", "fetch.wait.max.ms": 1}
        )

    def close(self) -> None:
        """Close them."""
        self.records.close()
        self.offsets.close()
        self.admin.__exit__(None, None, None)  # it has no ``close``


class LedgerReader:
    """One pipeline's ledger, for reading.

    :param config: client configuration in librdkafka's names; ``bootstrap.servers`` is required. Or connections that
        are there already, and stay open
    :param pipeline: name of the pipeline
    """

    def __init__(self, config: Mapping[str, Any] | LedgerConnections, pipeline: str) -> None:
        self.pipeline: Final = pipeline
        self.topic: Final = ledger_topic(pipeline)
        connections = config if isinstance(config, LedgerConnections) else LedgerConnections(config)
        self._owned = None if connections is config else connections
        self._admin, self._offsets, self._records = connections.admin, connections.offsets, connections.records

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, unless they are others' too."""
        if self._owned is not None:
            self._owned.close()

    def tail(self) -> LedgerTail | None:
        """Read the end of the ledger; None when the topic does not exist."""
        described = self._describe()
        if described is None:
            return None
        cluster_id, topic_id = described
        begin, end = self._bounds()
        tail = LedgerTail(cluster_id=cluster_id, topic_id=topic_id, end_offset=end)
        newest = self._newest(begin, end)
        if newest is None:
            return tail
        offset, record = newest
        if isinstance(record, CommitRecord):
            claim_offset = record.before.run_offset
            claim = self._record_at(ClaimRecord, claim_offset, begin, end)
            return replace(tail, claim=claim, claim_offset=claim_offset, commit=record, commit_offset=offset)
        commit_offset = record.before.commit_offset
        commit = self._record_at(CommitRecord, commit_offset, begin, end) if commit_offset >= 0 else None
        return replace(tail, claim=record, claim_offset=offset, commit=commit, commit_offset=commit_offset)

    def records(self, start_offset: int = 0, end_offset: int | None = None) -> Iterator[tuple[int, Record]]:
        """Yield (offset, record) from an offset to the end as it is now, oldest first.

        :param end_offset: end there, exclusive, if the ledger goes on
        """
        begin, end = self._bounds()
        for offset, value in self._read(max(begin, start_offset), end if end_offset is None else min(end, end_offset)):
            yield offset, decode(value)

    def commits(self, first: int = 1) -> Iterator[CommitRecord]:
        """Yield the commits from a number on, oldest first."""
        for _, record in self.records():
            if isinstance(record, CommitRecord) and record.commit >= first:
                yield record

    def _describe(self) -> tuple[str, str] | None:
        from confluent_kafka import KafkaError, TopicCollection

        cluster_future = self._admin.describe_cluster(request_timeout=_TIMEOUT_SECONDS)
        future = self._admin.describe_topics(TopicCollection([self.topic]), request_timeout=_TIMEOUT_SECONDS)
        cluster = cluster_future.result()
        topic = answer_of(future[self.topic], KafkaError.UNKNOWN_TOPIC_OR_PART)
        return None if topic is None else (cluster.cluster_id, str(topic.topic_id))

    def _bounds(self) -> tuple[int, int]:
        """Return (log start, last stable offset)."""
        partition = (self.topic, 0)
        self._records.find_leaders(self.topic)
        return self._offsets.starts([partition])[partition], self._offsets.last_stable([partition])[partition]

    def _newest(self, begin: int, end: int) -> tuple[int, Record] | None:
        window = _FIRST_WINDOW  # aborted records and control markers take offsets too, so a window may hold no record
        start = end
        while start > begin:
            start = max(begin, end - window)
            # Only the last one is decoded: with many partitions that takes longer than reading.
            for offset, value in deque(self._read(start, end), maxlen=1):
                return offset, decode(value)
            window *= 8
        return None

    def _record_at(self, kind: type[R], offset: int, begin: int, end: int) -> R:
        values = self._read(offset, offset + 1) if begin <= offset < end else ()
        record = next((decode(value) for _, value in values), None)
        if not isinstance(record, kind):
            expected = "a claim" if kind is ClaimRecord else "a commit"
            raise ExactlyOnceError(
                f"ledger {self.topic}: offset {offset} should hold {expected} and holds {type(record).__name__}; "
                "the topic was written by something else"
            )
        return record

    def _read(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        for message in self._records.read({(self.topic, 0): (start, end)}):
            value = message.value()
            if value is not None:
                yield int(message.offset() or 0), value


def tail_of(config: Mapping[str, Any], pipeline: str) -> LedgerTail | None:
    """Read the end of a pipeline's ledger, and nothing else of it; parameters as of :class:`LedgerReader`.

    :raises ExactlyOnceError: when the cluster does not answer
    """
    from confluent_kafka import KafkaException

    try:
        with LedgerReader(config, pipeline) as reader:
            return reader.tail()
    except KafkaException as error:
        raise unanswered(config, error) from error
