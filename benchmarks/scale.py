"""Measure where parts end that grow: the commit record, the turns of tasks, a transaction, supervisors in a triggerer.

Only the transaction needs a broker. It writes one record to each partition of a topic on a broker of its own, commits,
and waits until readers may read the last partition.

    python benchmarks/scale.py --partitions 100 1000 5000
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.devkit.topics import create_topic
from airflow_provider_exactlyonce.kafka import record_batch
from airflow_provider_exactlyonce.kafka.transaction import TransactionSession, add_partitions, produce
from airflow_provider_exactlyonce.kafka.wire import WireClient
from airflow_provider_exactlyonce.ledger import records
from airflow_provider_exactlyonce.ledger.records import CommitRecord, LedgerPointer, SinkRange
from airflow_provider_exactlyonce.streaming.commit.write_stage import CANDIDATES
from airflow_provider_exactlyonce.streaming.sequencer.client import first_in_round
from airflow_provider_exactlyonce.streaming.sequencer.core import Sequencer
from benchmarks import supervisors

TOPIC = "rows"
#: As large as offsets, ids and counts are after years.
OFFSET = 10**12


def commit_record(partitions: int) -> CommitRecord:
    """Return a commit that has read and written so many partitions."""
    ends = {partition: OFFSET + partition for partition in range(partitions)}
    written = {
        partition: SinkRange(first=end - 10_000, last=end - 1, rows=9_999, digest=2**64 - 1 - partition)
        for partition, end in ends.items()
    }
    identity = "0b6f1a4e-5f52-4ae5-a5ef-b7a4a9e5a0f3"
    return CommitRecord(
        pipeline="bench",
        commit=10**7,
        lineage=identity,
        batch=10**7,
        run=1000,
        version="0123456789ab",
        source={"events": {partition: (end - 10_000, end) for partition, end in ends.items()}},
        source_topic_ids={"events": "AAAAAAAAAAAAAAAAAAAAAA"},
        sink={TOPIC: written},
        sink_topic_ids={TOPIC: "BBBBBBBBBBBBBBBBBBBBBB"},
        offsets='v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n' + json.dumps({"events": ends}),
        watermark=0,
        batch_timestamp=0,
        rows=9_999 * partitions,
        digest=1,
        producer_id=10**6,
        epoch=1,
        started=1,
        committed=1_700_000_000_000,
        before=LedgerPointer(commit=10**7 - 1, commit_offset=OFFSET, run=1000, run_offset=OFFSET),
    )


def measure_record(partitions: int) -> dict[str, float]:
    """Return how large the record is, and how long it takes to be written and read in memory."""
    record = commit_record(partitions)
    began = time.perf_counter()
    value = records.encode(record)
    encoded = time.perf_counter()
    decoded_record = records.decode(value)
    decoded = time.perf_counter()
    assert decoded_record == record
    return {
        "bytes": len(value),
        "share_of_the_largest": len(value) / records.RECORD_BYTES_MAXIMUM,
        "encode_milliseconds": 1000 * (encoded - began),
        "decode_milliseconds": 1000 * (decoded - encoded),
    }


def measure_turns(tasks: int, partitions: int) -> dict[str, float]:
    """Return how many turns a second the sequencer's core gives, each task writing one body to each partition."""
    core = Sequencer()
    orders = [
        [(first_in_round(task, partitions) + number) % partitions for number in range(partitions)]
        for task in range(tasks)
    ]
    unsent = [dict.fromkeys(order) for order in orders]
    began = time.perf_counter()
    for task in range(tasks):
        core.register(task, 0)
    granted = deque(grant for task in range(tasks) for grant in core.ask(task, TOPIC, _wanted(unsent[task])))
    turns = 0
    while granted:
        grant = granted.popleft()
        turns += 1
        del unsent[grant.task][grant.partition]
        following = core.release(grant.task, (grant.topic, grant.partition), 5, OFFSET + turns)
        if following is not None:
            granted.append(following)
        if unsent[grant.task]:
            granted.extend(core.ask(grant.task, TOPIC, _wanted(unsent[grant.task])))
        else:
            core.done(grant.task)
    seconds = time.perf_counter() - began
    assert turns == tasks * partitions == sum(granted_range.rows for granted_range in core.result(tasks).values()) // 5
    return {"turns": turns, "turns_a_second": turns / seconds}


def _wanted(unsent: dict[int, None]) -> list[int]:
    return [partition for partition, _ in zip(unsent, range(CANDIDATES), strict=False)]


def measure_transactions(config: dict[str, str], partitions: int, rounds: int) -> dict[str, float]:
    """Return how long the steps of a transaction take that writes to so many partitions."""
    topic = f"{TOPIC}-{partitions}"
    create_topic(config["bootstrap.servers"], topic, partitions)
    with WireClient(config) as client:
        session = TransactionSession(client, f"bench-{partitions}", timeout_milliseconds=600_000)
        session.initialise()
        best = {"add": float("inf"), "write": float("inf"), "commit": float("inf"), "visible": float("inf")}
        for _ in range(rounds):
            session.begin()
            producer, identity = session.producer, session.transactional_id
            body = _body(producer.id, producer.epoch)
            moments = [time.perf_counter()]
            add_partitions(client, identity, producer, topic, list(range(partitions)))
            moments.append(time.perf_counter())
            for first in range(0, partitions, 500):
                bodies = dict.fromkeys(range(first, min(first + 500, partitions)), body)
                produce(client, identity, topic, bodies)
            moments.append(time.perf_counter())
            stable_before = client.stable_offsets(topic)
            session.commit()
            moments.append(time.perf_counter())
            while not _are_behind(client.stable_offsets(topic), stable_before):
                time.sleep(0.005)
            moments.append(time.perf_counter())
            best = {
                step: min(quickest, end - start)
                for (step, quickest), start, end in zip(best.items(), moments, moments[1:], strict=False)
            }
    return {f"{step}_milliseconds": 1000 * seconds for step, seconds in best.items()}


def _are_behind(stable: Mapping[int, int], before: Mapping[int, int]) -> bool:
    """Tell whether readers may read one more record, and the marker behind it, of each partition."""
    return all(stable[partition] >= end + 2 for partition, end in before.items())


def _body(producer: int, epoch: int) -> bytes:
    column = pa.array([b"key"], type=pa.binary())
    (body,) = record_batch.encode_bodies(
        column,
        column,
        pa.array([0]),
        np.zeros(1, dtype=np.int32),
        timestamps=int(time.time() * 1000),
        body_bytes_maximum=4_000_000,
    )
    return b"".join(record_batch.with_header(body, producer_id=producer, epoch=epoch, base_sequence=0))


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, nargs="+", default=[100, 1000, 5000], help="of a transaction")
    parser.add_argument("--rounds", type=int, default=3, help="of each transaction; the best is printed")
    given = parser.parse_args()
    for measured in supervisors.measure(1_000, 60.0, [300.0]):
        print(json.dumps(measured), flush=True)
    for partitions in (100, 1_000, 10_000, 40_000):
        print(json.dumps({"record_of_partitions": partitions, **measure_record(partitions)}), flush=True)
    for tasks, partitions in ((200, 200), (200, 1_000), (1_000, 1_000)):
        print(json.dumps({"tasks": tasks, "partitions": partitions, **measure_turns(tasks, partitions)}), flush=True)
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder)) as broker:
        config = {"bootstrap.servers": broker.bootstrap_servers}
        for partitions in given.partitions:
            measured = measure_transactions(config, partitions, given.rounds)
            print(json.dumps({"transaction_of_partitions": partitions, **measured}), flush=True)


if __name__ == "__main__":
    main()
