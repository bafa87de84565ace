"""How long a ledger takes to open: after a million commits, after aborted attempts, and with holes of compaction.

Run: ``python benchmarks/ledger.py [commits]``. Starts a broker of its own, and fills the ledger in bulk.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.kafka import record_batch
from airflow_provider_exactlyonce.kafka.transaction import TransactionSession, add_partitions, produce
from airflow_provider_exactlyonce.kafka.wire import WireClient
from airflow_provider_exactlyonce.ledger import records, topic
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import ClaimRecord, CommitRecord, LedgerPointer, SinkRange

PIPELINE = "bench"
CHUNK = 20_000
ROUNDS = 9
ABORTED = 1000
COMPACTION_SECONDS = 300
GOAL_SECONDS = 1.0


class Filler:
    """Writes a ledger as a pipeline with four source and four sink partitions does, many commits a transaction."""

    def __init__(self, config: dict[str, str]) -> None:
        topic.ensure(config, PIPELINE)
        self.client = WireClient(config)
        self.session = TransactionSession(self.client, records.transactional_id(PIPELINE), timeout_milliseconds=600_000)
        self.ledger = records.ledger_topic(PIPELINE)
        self.place = LedgerPointer()

    def claim(self) -> None:
        """Start a run."""
        self.session.initialise()
        self.session.begin()
        claim = ClaimRecord(
            pipeline=PIPELINE,
            run=self.place.run + 1,
            host="localhost",
            pid=1,
            token="0b6f1a4e-5f52-4ae5-a5ef-b7a4a9e5a0f3",
            lineage="0b6f1a4e-5f52-4ae5-a5ef-b7a4a9e5a0f3",
            version="0123456789ab",
            home="0b6f1a4e-5f52-4ae5-a5ef-b7a4a9e5a0f3",
            home_path="/home/of/the/pipeline",
            base_commit=self.place.commit,
            claimed=int(time.time() * 1000),
            before=self.place,
        )
        offset = self.session.write(self.ledger, 0, claim.key, records.encode(claim))
        self.session.commit()
        self.place = replace(self.place, run=claim.run, run_offset=offset)

    def commits(self, number: int) -> None:
        """Write commits in one transaction, in bodies as large as the topic accepts."""
        self.session.begin()
        producer, identity = self.session.producer, self.session.transactional_id
        add_partitions(self.client, identity, producer, self.ledger, [0])
        following = self._end()
        keys, values = [], []
        for offset in range(following, following + number):
            record = self._commit()
            keys.append(record.key)
            values.append(records.encode(record))
            self.place = replace(self.place, commit=record.commit, commit_offset=offset)
        sequence = 0
        for body in record_batch.encode_bodies(
            pa.array(keys, type=pa.binary()),
            pa.array(values, type=pa.binary()),
            pa.array([0] * number),
            np.zeros(number, dtype=np.int32),
            timestamps=int(time.time() * 1000),
            body_bytes_maximum=4_000_000,
        ):
            stamped = record_batch.with_header(
                body, producer_id=producer.id, epoch=producer.epoch, base_sequence=sequence
            )
            produce(self.client, identity, self.ledger, {0: b"".join(stamped)})
            sequence = record_batch.advance_sequence(sequence, body.records)
        self.session.commit()

    def aborts(self, number: int) -> None:
        """Leave aborted commit records at the end."""
        for _ in range(number):
            self.session.begin()
            record = self._commit()
            self.session.write(self.ledger, 0, record.key, records.encode(record))
            self.session.abort()

    def _commit(self) -> CommitRecord:
        commit = self.place.commit + 1
        ends = dict.fromkeys(range(4), 10000 * commit)
        written = {
            partition: SinkRange(first=end - 10_000, last=end - 1, rows=9_999, digest=2**64 - commit)
            for partition, end in ends.items()
        }
        return CommitRecord(
            pipeline=PIPELINE,
            commit=commit,
            lineage="0b6f1a4e-5f52-4ae5-a5ef-b7a4a9e5a0f3",
            batch=commit - 1,
            run=self.place.run,
            version="0123456789ab",
            source={"events": {partition: (end - 10_000, end) for partition, end in ends.items()}},
            source_topic_ids={"events": "AAAAAAAAAAAAAAAAAAAAAA"},
            sink={"totals": written},
            offsets='v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n{"events":' + str(ends) + "}",
            watermark=0,
            batch_timestamp=0,
            rows=39_996,
            digest=1,
            producer_id=self.session.producer.id,
            epoch=self.session.producer.epoch,
            started=1,
            committed=1_700_000_000_000 + 1000 * commit,
            before=self.place,
            sink_topic_ids={"totals": "BBBBBBBBBBBBBBBBBBBBBB"},
        )

    def _end(self) -> int:
        while True:  # the marker of the transaction before takes an offset, too
            stable = self.client.offsets.last_stable([(self.ledger, 0)])[self.ledger, 0]
            if stable > max(self.place.commit_offset, self.place.run_offset) + 1:
                return stable
            time.sleep(0.01)


def opened(config: dict[str, str], expected: int) -> list[float]:
    """Open the ledger afresh some times; returns the seconds of each."""
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        with LedgerReader(config, PIPELINE) as reader:
            tail = reader.tail()
        seconds.append(time.perf_counter() - began)
        if tail is None or tail.place.commit != expected:
            raise SystemExit(f"the ledger's end is {tail and tail.place}; commit {expected} was expected")
    return seconds


def compact(config: dict[str, str], filler: Filler) -> None:
    """Tombstone all but the newest thousand commits and wait until the log has holes where they were."""
    alter(config, **{"min.compaction.lag.ms": "0", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "1000"})
    alter(config, **{"max.compaction.lag.ms": "1000", "delete.retention.ms": "0"})
    first_kept = filler.place.commit - 1000
    for first in range(1, first_kept, 100_000):
        filler.session.begin()
        keys = [records.commit_key(commit) for commit in range(first, min(first + 100_000, first_kept))]
        filler.session.write(filler.ledger, 0, b"commit/0", b"{}", tombstones=[b"commit/0", *keys])
        filler.session.commit()
    filler.claim()
    deadline = time.monotonic() + COMPACTION_SECONDS
    while time.monotonic() < deadline:
        with LedgerReader(config, PIPELINE) as reader:
            _, (second, _) = islice(reader.records(), 2)  # the first claim stays
        if second > first_kept // 2:
            return
        filler.aborts(1)  # rolls the active segment
        time.sleep(2)
    raise SystemExit(f"nothing was compacted within {COMPACTION_SECONDS} s")


def alter(config: dict[str, str], **settings: str) -> None:
    """Change settings of the ledger's topic."""
    admin = AdminClient(dict(config))
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, records.ledger_topic(PIPELINE), incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result()


def main(commits: int) -> None:
    """Print the median and the worst of some openings in each state."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder)) as broker:
        config = {"bootstrap.servers": broker.bootstrap_servers}
        filler = Filler(config)
        filler.claim()
        began = time.perf_counter()
        while filler.place.commit < commits:
            filler.commits(min(CHUNK, commits - filler.place.commit))
        size = filler.client.offsets.last_stable([(filler.ledger, 0)])[filler.ledger, 0]
        print(f"{commits:,} commits, {size:,} offsets, filled in {time.perf_counter() - began:.0f} s")
        opened(config, commits)  # the cluster's first consumer: the broker makes __consumer_offsets, once and for all
        slowest = [report("as it is", opened(config, commits))]
        filler.aborts(ABORTED)
        slowest.append(report(f"behind {ABORTED:,} aborted attempts", opened(config, commits)))
        compact(config, filler)
        slowest.append(report("tombstoned and compacted", opened(config, commits)))
        filler.client.close()
    if max(slowest) >= GOAL_SECONDS:
        raise SystemExit(f"a ledger should open within {GOAL_SECONDS:g} s")


def report(state: str, seconds: list[float]) -> float:
    """Print one line; returns the worst."""
    print(f"{state:32} median {statistics.median(seconds) * 1000:6.0f} ms, worst {max(seconds) * 1000:6.0f} ms")
    return max(seconds)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
