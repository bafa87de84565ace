"""A pipeline without Spark: real transactions and a real ledger, and every lie that a test wants in them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pyarrow as pa

from airflow_provider_exactlyonce.kafka import record_batch
from airflow_provider_exactlyonce.kafka.digest import record_digest
from airflow_provider_exactlyonce.kafka.transaction import TransactionSession, add_partitions, produce
from airflow_provider_exactlyonce.kafka.wire import WireClient
from airflow_provider_exactlyonce.ledger import records, topic
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import ClaimRecord, CommitRecord, LedgerPointer, SinkRange
from tests.ledger_records import claim_record, commit_record
from tests.waiting import eventually

Row = tuple[bytes | None, bytes | None]
#: {partition: rows}
Rows = Mapping[int, Sequence[Row]]


def rows_of(batch: int, partitions: int = 2, count: int = 5) -> dict[int, list[Row]]:
    """Make rows that no other batch has."""
    return {
        partition: [(f"k{n}".encode(), f"{batch}-{partition}-{n}".encode()) for n in range(count)]
        for partition in range(partitions)
    }


class CraftedPipeline:
    """Commits batches as the sink does.

    :param sink: topic that it writes
    """

    def __init__(self, config: Mapping[str, str], pipeline: str, sink: str) -> None:
        self.config, self.pipeline, self.sink = dict(config), pipeline, sink
        self.ledger = records.ledger_topic(pipeline)
        self.client = WireClient(self.config)
        self.session = TransactionSession(self.client, records.transactional_id(pipeline), timeout_milliseconds=60_000)
        topic.ensure(self.config, pipeline)
        self.place = LedgerPointer()
        self.batch = 0
        self.source_end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def claim(self, **changes: Any) -> ClaimRecord:
        """Start a run."""
        self.session.initialise()
        self.session.begin()
        claim = claim_record(
            self.place.run + 1, pipeline=self.pipeline, base_commit=self.place.commit, claimed=1, before=self.place
        )
        claim = replace(claim, **changes)
        offset = self.session.write(self.ledger, 0, claim.key, records.encode(claim))
        self.session.commit()
        self.place = replace(self.place, run=claim.run, run_offset=offset)
        return claim

    def append(self, rows: Rows) -> dict[int, SinkRange]:
        """Append rows to the sink in the open transaction; returns what was written."""
        written = {}
        producer = self.session.producer
        for partition, of_partition in rows.items():
            keys, values = zip(*of_partition, strict=True)
            digests = [record_digest(key, value) for key, value in of_partition]
            (body,) = record_batch.encode_bodies(
                pa.array(keys, type=pa.binary()),
                pa.array(values, type=pa.binary()),
                pa.array(digests, type=pa.uint64()),
                np.full(len(keys), partition, dtype=np.int32),
                timestamps=int(time.time() * 1000),
                body_bytes_maximum=1_000_000,
            )
            add_partitions(self.client, self.session.transactional_id, producer, self.sink, [partition])
            stamped = record_batch.with_header(body, producer_id=producer.id, epoch=producer.epoch, base_sequence=0)
            batches = {partition: b"".join(stamped)}
            first = produce(self.client, self.session.transactional_id, self.sink, batches)[partition]
            written[partition] = SinkRange(
                first=first, last=first + len(keys) - 1, rows=len(keys), digest=sum(digests) % 2**64
            )
        return written

    def record(self, written: Mapping[int, SinkRange], **changes: Any) -> CommitRecord:
        """Make the next commit's record."""
        sink = {self.sink: dict(written)} if written else {}
        record = commit_record(
            self.place.commit + 1,
            pipeline=self.pipeline,
            batch=self.batch,
            run=self.place.run,
            source={"in": {0: (self.source_end, self.source_end + 10)}},
            source_topic_ids={"in": "i"},
            sink=sink,
            offsets="v1",
            rows=sum(sink_range.rows for sink_range in written.values()),
            digest=sum(sink_range.digest for sink_range in written.values()) % 2**64,
            producer_id=self.session.producer.id,
            epoch=self.session.producer.epoch,
            started=1,
            committed=int(time.time() * 1000),
            before=self.place,
        )
        return replace(record, **changes)

    def end(self, record: CommitRecord) -> None:
        """Write the record and commit."""
        offset = self.session.write(self.ledger, 0, record.key, records.encode(record))
        self.session.commit()
        self.note(record, offset)

    def note(self, record: CommitRecord, offset: int) -> None:
        """Go on behind a commit."""
        self.place = replace(self.place, commit=record.commit, commit_offset=offset, oldest=record.before.oldest)
        self.batch = record.batch + 1
        self.source_end = record.source["in"][0][1]

    def commit(self, rows: Rows, **changes: Any) -> CommitRecord:
        """Commit a batch; the changes go to its record."""
        self.session.begin()
        record = self.record(self.append(rows), **changes)
        self.end(record)
        return record

    def abort(self, rows: Rows) -> None:
        """Attempt a batch that is aborted."""
        self.session.begin()
        self.append(rows)
        self.session.abort()

    def settle(self) -> None:
        """Wait until the ledger's last commit is readable."""
        with LedgerReader(self.config, self.pipeline) as reader:

            def is_there() -> bool:
                tail = reader.tail()
                return tail is not None and tail.place.commit == self.place.commit

            eventually(is_there, f"commit {self.place.commit} is readable")
