"""What one task sends to Kafka, as it was on the wire."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.exceptions import RecordTooLargeError
from airflow_provider_exactlyonce.kafka import preflight, record_batch
from airflow_provider_exactlyonce.kafka.compression import UNCOMPRESSED, Compression
from airflow_provider_exactlyonce.kafka.transaction import TransactionSession
from airflow_provider_exactlyonce.kafka.wire import WireClient
from airflow_provider_exactlyonce.streaming.commit import write_stage
from airflow_provider_exactlyonce.streaming.sequencer.listener import SequencerListener
from airflow_provider_exactlyonce.streaming.sequencer.server import SequencerServer
from airflow_provider_exactlyonce.streaming.settings import SequencerEndpoint
from tests.integration.kafka.proxy import Api, Proxy, cut_after
from tests.integration.protocol.tasks import close_connections
from tests.integration.streaming.harness import read_committed

ROWS = 100


def rows(start: int) -> pa.RecordBatch:
    numbers = range(start, start + ROWS)
    return pa.record_batch(
        {
            "key": pa.array([b"%d" % number for number in numbers], pa.binary()),
            "value": pa.array([b"v%d" % number for number in numbers], pa.binary()),
            "digest": pa.array(numbers, pa.int64()),
        }
    )


@contextmanager
def writing(
    config: Mapping[str, str],
    topic: str,
    compression: Compression = UNCOMPRESSED,
    *,
    config_of_tasks: Mapping[str, str] | None = None,
) -> Iterator[tuple[Callable[[pa.RecordBatch], Mapping[Any, tuple[int, int]]], SequencerServer]]:
    """Give what writes rows in a transaction, a task for each call, and its sequencer; it commits at the end."""
    listener = SequencerListener(SequencerEndpoint(host="127.0.0.1", bind_address="127.0.0.1"))
    with WireClient(config) as client:
        session = TransactionSession(client, f"t-{uuid.uuid4()}", timeout_milliseconds=60_000)
        session.initialise()
        session.begin()
        settings = write_stage.WriterSettings(
            config=config if config_of_tasks is None else config_of_tasks,
            sequencer_key=listener.key,
            transactional_id=session.transactional_id,
            topic=topic,
            compression=compression,
        )
        with SequencerServer(
            listener, grant_timeout_seconds=30, attempt_timeout_seconds=60, on_failure=lambda: None
        ) as server:
            task = write_stage.WriteTask(
                settings=settings,
                sequencer=server.address,
                producer=session.producer,
                targets=preflight.check_topics(client, sinks=[topic], allow_single_replica=True),
            )
            numbers = itertools.count()
            yield lambda rows: write_stage.write_rows(iter([rows]), task, next(numbers), 0), server
        session.commit()
    close_connections()
    listener.socket.close()


def count(written: Mapping[Any, tuple[int, int]]) -> int:
    return sum(rows for rows, _ in written.values())


@pytest.mark.parametrize(("request_bytes", "requests"), [(write_stage.REQUEST_BYTES, 2), (1, 16)])
def test_a_task_adds_all_its_partitions_to_the_transaction_at_once_and_fills_them_at_once(
    broker: EmbeddedBroker,
    kafka_config: Mapping[str, str],
    make_led_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    request_bytes: int,
    requests: int,
) -> None:
    monkeypatch.setattr(write_stage, "REQUEST_BYTES", request_bytes)
    topic = make_led_topic(partitions=8)
    with Proxy(broker.state.port) as proxy:
        with writing(kafka_config, topic, config_of_tasks=proxy.config) as (write, server):
            proxy.on(Api.ADD_PARTITIONS, cut_after)
            for number in range(2):
                written = write(rows(number * ROWS))
                assert count(written) == ROWS
                assert len(written) == 8, "every partition has records"
            ranges = server.result(2)
        asked = [request for request in proxy.requests if request.api == Api.ADD_PARTITIONS]
        assert len(asked) == 2, "the first task's, whose answer was lost, and its repetition; the second needs none"
        sent = [request for request in proxy.requests if request.api == Api.PRODUCE]
        assert len(sent) == requests, "each task's small bodies go in one request, large ones in one each"
        assert proxy.pending == 0
    assert sum(of.rows for of in ranges.values()) == 2 * ROWS
    read = [(record.key, record.value) for record in read_committed(kafka_config, topic)]
    assert sorted(read) == sorted((b"%d" % number, b"v%d" % number) for number in range(2 * ROWS))


@pytest.mark.parametrize(
    ("sizes", "together"), [([1], 1), ([10] * 5, 5), ([40, 40, 40], 2), ([101, 1, 1], 1), ([90, 5, 5, 5], 3)]
)
def test_as_many_bodies_go_together_as_fit_a_request_whichever_are_granted(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], together: int
) -> None:
    monkeypatch.setattr(write_stage, "REQUEST_BYTES", 100)
    body = record_batch.encode_few([(b"k", b"v")], 0)
    bodies = [replace(body, payload=memoryview(bytes(size))) for size in sizes]
    assert write_stage._bodies_per_request(bodies) == together


def of_values(values: list[bytes]) -> pa.RecordBatch:
    keys = [b"%d" % number for number in range(len(values))]
    columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
    return pa.record_batch({**columns, "digest": pa.array(range(len(values)), pa.int64())})


OWN_CODECS = ("gzip", "snappy", "lz4", "zstd")
LIMIT = 200_000


@pytest.mark.parametrize("sent", ["none", *OWN_CODECS])
@pytest.mark.parametrize("kept", OWN_CODECS)
def test_full_batches_of_what_does_not_shrink_fit_as_the_broker_compresses_them(
    kafka_config: Mapping[str, str], make_led_topic: Callable[..., str], kept: str, sent: str
) -> None:
    topic = make_led_topic(partitions=1, **{"compression.type": kept, "max.message.bytes": str(LIMIT)})
    chance = random.Random(20261123)
    filling = [(LIMIT - 61) // together - 14 for together in (2, 3, 5) for _ in range(5 * together)]
    values = [chance.randbytes(size) for size in [*filling, *[100] * 5_000, *[170_000] * 2]]
    with writing(kafka_config, topic, Compression(sent)) as (write, _):
        assert count(write(of_values(values))) == len(values)
    assert [record.value for record in read_committed(kafka_config, topic)] == values


@pytest.mark.parametrize("kept", OWN_CODECS)
def test_a_record_that_the_broker_makes_too_large_is_refused_by_name_and_one_that_shrinks_is_not(
    kafka_config: Mapping[str, str], make_led_topic: Callable[..., str], kept: str
) -> None:
    topic = make_led_topic(partitions=1, **{"compression.type": kept, "max.message.bytes": str(LIMIT)})
    length = LIMIT - 61 - 20  # of the batch's header and the record's
    with writing(kafka_config, topic) as (write, _):
        assert count(write(of_values([b"x" * length]))) == 1
        with pytest.raises(
            RecordTooLargeError, match=rf"{topic}: the record .*key b'0'.* more than {LIMIT}.*type={kept}"
        ):
            write(of_values([random.Random(20261123).randbytes(length)]))
