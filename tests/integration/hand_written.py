"""A pipeline whose batches are told by the test: real topics, real transactions, a real ledger, no Spark."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from confluent_kafka import IsolationLevel, Producer

from airflow_provider_exactlyonce.ledger import topic as ledger_topics
from airflow_provider_exactlyonce.ledger.records import (
    CommitRecord,
    LedgerPointer,
    SinkRange,
    encode,
    ledger_topic,
)
from tests.integration.streaming.harness import end_offsets
from tests.ledger_records import claim_record, commit_record
from tests.waiting import eventually


class HandWrittenPipeline:
    """Commits as a driver does, sink records and ledger record in one transaction, but rows are told by the test."""

    def __init__(self, config: Mapping[str, str], *, source: str, sink: str, name: str | None = None) -> None:
        self.config, self.source, self.sink = config, source, sink
        self.name = name or f"gate-{uuid.uuid4().hex[:8]}"
        self.ends: dict[int, int] = {}
        self.place = LedgerPointer()
        ledger_topics.ensure(config, self.name)
        self.producer = Producer({**config, "transactional.id": f"exactlyonce.{self.name}"})
        self.producer.init_transactions(30)

    def claim(self) -> None:
        """Begin a run."""
        claim = claim_record(1, pipeline=self.name, host="here", home="h", home_path="/h", before=self.place)
        self.producer.begin_transaction()
        [offset] = self.send(ledger_topic(self.name), {0: [(claim.key, encode(claim))]})[0]
        self.producer.commit_transaction(30)
        self.place = replace(self.place, run=1, run_offset=offset)
        self._wait_until_readable(offset)

    def commit(
        self,
        rows: Mapping[int, int],
        *,
        read_up_to: Mapping[int, int],
        watermark: int = 0,
        second: str = "",
        **changes: Any,
    ) -> None:
        """Commit a batch.

        :param rows: how many, by sink partition
        :param read_up_to: source ends by partition
        :param second: another sink topic, which gets the same rows
        :param changes: to its record
        """
        self.producer.begin_transaction()
        records = {partition: [(b"k", b"v")] * number for partition, number in rows.items()}
        written = {topic: self.send(topic, records) for topic in (self.sink, second) if topic}
        sink = {
            topic: {
                partition: SinkRange(first=offsets[0], last=offsets[-1], rows=len(offsets), digest=0)
                for partition, offsets in of.items()
            }
            for topic, of in written.items()
        }
        record = self._record(sink, read_up_to, watermark, **changes)
        [offset] = self.send(ledger_topic(self.name), {0: [(record.key, encode(record))]})[0]
        self.producer.commit_transaction(30)
        self.place = replace(self.place, commit_offset=offset)
        self._wait_until_readable(offset)

    def commit_often(self, partition: int, commits: int) -> None:
        """Commit batches of one row each, all in one transaction: a ledger of many commits in little time."""
        ledger = ledger_topic(self.name)
        offset = end_offsets(self.config, ledger, IsolationLevel.READ_UNCOMMITTED)[0]
        self.producer.begin_transaction()
        records = []
        for row in self.send(self.sink, {partition: [(b"k", b"v")] * commits})[partition]:
            sink = {self.sink: {partition: SinkRange(first=row, last=row, rows=1, digest=0)}}
            records.append(self._record(sink, {0: self.ends.get(0, 0) + 1}, 0))
            self.place = replace(self.place, commit_offset=offset + len(records) - 1)
        sent = self.send(ledger, {0: [(record.key, encode(record)) for record in records]})[0]
        assert sent[-1] == self.place.commit_offset
        self.producer.commit_transaction(30)
        self._wait_until_readable(sent[-1])

    def _record(
        self,
        sink: Mapping[str, Mapping[int, SinkRange]],
        read_up_to: Mapping[int, int],
        watermark: int,
        **changes: Any,
    ) -> CommitRecord:
        """Make the next commit's record, and go on behind it."""
        ranges = {partition: (self.ends.get(partition, 0), end) for partition, end in read_up_to.items()}
        record = commit_record(
            self.place.commit + 1,
            pipeline=self.name,
            batch=self.place.commit,
            source={self.source: ranges},
            sink={topic: of for topic, of in sink.items() if of},
            watermark=watermark,
            rows=sum(written.rows for of in sink.values() for written in of.values()),
            producer_id=0,
            epoch=0,
            committed=int(time.time() * 1000),
            before=self.place,
        )
        self.ends.update(read_up_to)
        self.place = replace(self.place, commit=record.commit)
        return replace(record, **changes)

    def _wait_until_readable(self, offset: int) -> None:
        """A commit is answered before the coordinator has written its markers."""
        ledger = ledger_topic(self.name)
        eventually(
            lambda: end_offsets(self.config, ledger, IsolationLevel.READ_COMMITTED)[0] > offset,
            f"{ledger} can be read up to {offset}",
            poll_seconds=0.01,
        )

    def send(self, topic: str, records: Mapping[int, list[tuple[bytes, bytes]]]) -> dict[int, list[int]]:
        """Send and return the offsets by partition."""
        return send(self.producer, topic, records)


def send(
    producer: Producer, topic: str, records: Mapping[int, list[tuple[bytes, bytes]]], timestamp: int = 0
) -> dict[int, list[int]]:
    offsets: dict[int, list[int]] = {}

    def delivered(error: object, message: Any) -> None:
        assert error is None
        offsets.setdefault(message.partition(), []).append(message.offset())

    for partition, pairs in records.items():
        for key, value in pairs:
            producer.produce(topic, value, key=key, partition=partition, timestamp=timestamp, on_delivery=delivered)
    assert producer.flush(30) == 0
    return offsets
