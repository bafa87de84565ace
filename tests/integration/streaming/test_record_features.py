"""What the Kafka sink writes for what a user declares: real tasks, a real broker, an independent reader."""

from __future__ import annotations

import datetime
import io
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import fastavro
import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from airflow_provider_exactlyonce.checkpoint.layout import parse_offsets
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    BatchTimedOutError,
    ExactlyOnceError,
    RecordRefusedError,
    RecordTooLargeError,
    RefusedError,
)
from airflow_provider_exactlyonce.kafka.batch_headers import read_headers
from airflow_provider_exactlyonce.kafka.preflight import check_topics
from airflow_provider_exactlyonce.ledger.records import CommitRecord, ledger_topic
from airflow_provider_exactlyonce.streaming import AvroFormat, KafkaSink, KafkaSource
from airflow_provider_exactlyonce.streaming.commit.arrow_batching import ARROW_ROWS, UNLIMITED_BYTES
from airflow_provider_exactlyonce.streaming.commit.at_least_once import AtLeastOnceWriter
from airflow_provider_exactlyonce.streaming.commit.batch import Batch
from airflow_provider_exactlyonce.streaming.commit.batch_attempt import BatchAttempt, TransactionOptions
from airflow_provider_exactlyonce.streaming.commit.batch_transaction import BatchTransaction
from airflow_provider_exactlyonce.streaming.commit.batch_writer import BatchWriter
from airflow_provider_exactlyonce.streaming.commit.coordinator import Callbacks, CommitCoordinator
from airflow_provider_exactlyonce.streaming.commit.exactly_once import TransactionalWriter
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions
from airflow_provider_exactlyonce.streaming.declaration import pipeline
from airflow_provider_exactlyonce.streaming.sequencer import server as sequencer_server
from airflow_provider_exactlyonce.streaming.sequencer.listener import SequencerListener
from airflow_provider_exactlyonce.streaming.settings import ARROW_BYTES, DEFAULTS, SequencerEndpoint

HEADERS = "array<struct<key:string,value:binary>>"
#: The encoder's own tests write all codecs, too.
SLOW_CODECS = [pytest.param(codec, marks=pytest.mark.slow) for codec in ("gzip", "snappy", "lz4")]


@dataclass
class Written:
    """What a sink has committed in a test."""

    sink: BatchTransaction
    coordinator: CommitCoordinator
    run: Run
    commits: list[CommitRecord] = field(default_factory=list)
    source: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)


@pytest.fixture
def open_sink(kafka_config: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Written]]:
    """Give ``open(definition)``: a sink with a run of its own, and the coordinator that drives it."""
    runs: list[Run] = []

    def open_(
        definition: KafkaSink,
        pipeline: str = "features",
        bad: Any = None,
        writer: Callable[[BatchAttempt], BatchWriter] = TransactionalWriter,
    ) -> Written:
        name = f"{pipeline}-{tmp_path.name}-{len(runs)}".replace("[", "-").replace("]", "")
        options = RunOptions(config=kafka_config, token=name, version="v", transaction_timeout_milliseconds=900_000)
        run = Run(Home(tmp_path / name), name, options)
        runs.append(run)
        transaction_options = TransactionOptions(definition=definition, bad_source_records=bad)
        targets = check_topics(run.client, sinks=definition.topics)
        attempt = BatchAttempt(run, transaction_options, targets, listener)
        sink = BatchTransaction(attempt, writer(attempt), lambda: False)
        run.start()
        written = Written(sink=sink, coordinator=None, run=run)  # type: ignore[arg-type]

        def plan(number: int) -> Batch:
            text = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n-\n'
            return Batch(
                lineage=run.lineage.id,
                number=number,
                offsets=parse_offsets(text),
                source=written.source,
                source_topic_ids={},
            )

        callbacks = Callbacks(
            plan=plan, stop_reason=lambda: None, committed=lambda record, _, __: written.commits.append(record)
        )
        written.coordinator = CommitCoordinator(sink, callbacks, max_batch_attempts=1)
        return written

    with SequencerListener(SequencerEndpoint(host="127.0.0.1", bind_address="127.0.0.1")) as listener:
        yield open_
        for run in runs:
            run.close()


def read(config: Mapping[str, str], *topics: str) -> list[Message]:
    """Read what is committed, with a client that shares nothing with the code under test."""
    consumer = Consumer(
        {
            **config,
            "group.id": "independent",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,  # the end is told after an empty fetch
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    places = [
        TopicPartition(topic, partition, OFFSET_BEGINNING)
        for topic in topics
        for partition in consumer.list_topics(topic).topics[topic].partitions
    ]
    consumer.assign(places)
    messages, ended = [], 0
    while ended < len(places):
        message = consumer.poll(10)
        assert message is not None, "no answer from the broker"
        if (error := message.error()) is None:
            messages.append(message)
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended += 1
    consumer.close()
    return messages


def facts(message: Message) -> tuple[Any, ...]:
    return message.key(), message.value(), message.headers() or [], message.partition()


def test_headers_partition_and_timestamp_columns_arrive_with_the_record(
    spark: Any, open_sink: Callable[..., Written], kafka_config: dict[str, str], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=4)
    at = datetime.datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=datetime.UTC)
    rows = [
        (b"k1", b"v1", [("h", b"1"), ("h", None), ("ü", b"")], 3, at),
        (b"k2", b"v2", [], 0, at - datetime.timedelta(days=3)),
        (None, b"v3", None, 2, at),
        (b"k4", None, [("only", b"x" * 300)], 1, at),
        (None, None, None, 1, at),
    ]
    frame = spark.createDataFrame(rows, f"key BINARY, value BINARY, h {HEADERS}, p INT, t TIMESTAMP")
    out = open_sink(KafkaSink(topic, headers="h", partition="p", timestamp="t"))
    out.coordinator.process(out.sink.prepare(frame), 0)
    messages = sorted(read(kafka_config, topic), key=lambda message: repr(facts(message)))
    expected = [(key, value, headers or [], partition) for key, value, headers, partition, _ in rows]
    assert [facts(message) for message in messages] == sorted(expected, key=repr)
    by_value = {message.value(): message.timestamp()[1] for message in messages if message.value()}
    assert by_value[b"v1"] == int(at.timestamp() * 1000) == by_value[b"v2"] + 3 * 86_400_000


def test_a_topic_column_sends_rows_to_many_topics_in_one_transaction(
    spark: Any, open_sink: Callable[..., Written], kafka_config: dict[str, str], make_topic: Callable[..., str]
) -> None:
    default, first, second = make_topic(partitions=2), make_topic(partitions=3), make_topic(partitions=1)
    rows = [(f"k{number}", f"v{number}", (None, first, second)[number % 3]) for number in range(300)]
    frame = spark.createDataFrame(rows, "key STRING, value STRING, t STRING").repartition(3)
    out = open_sink(KafkaSink(default, topic_column="t"))
    out.coordinator.process(out.sink.prepare(frame), 0)
    for place, topic in enumerate((default, first, second)):
        expected = sorted(f"v{number}".encode() for number in range(300) if number % 3 == place)
        assert sorted(message.value() or b"" for message in read(kafka_config, topic)) == expected
    (record,) = out.commits
    assert {topic: sum(of.rows for of in ranges.values()) for topic, ranges in record.sink.items()} == dict.fromkeys(
        (default, first, second), 100
    )
    assert record.sink_topic_ids.keys() == record.sink.keys()
    missing = spark.createDataFrame([("k", "v", "absent")], "key STRING, value STRING, t STRING")
    with pytest.raises(RecordRefusedError, match="sink topic absent"):
        out.coordinator.process(out.sink.prepare(missing), 1)
    assert len(out.commits) == 1


def test_a_row_that_names_a_source_topic_or_a_ledger_stops_its_batch_and_nothing_of_it_is_committed(
    spark: Any, open_sink: Callable[..., Written], kafka_config: dict[str, str], make_topic: Callable[..., str]
) -> None:
    default, source = make_topic(), make_topic()
    out = open_sink(KafkaSink(default, topic_column="t"))
    out.source = {source: {0: (0, 1)}}
    ledger = ledger_topic(out.run.pipeline)
    for number, (named, message) in enumerate([(source, f"topic {source}, and reads it"), (ledger, "the ledger of")]):
        frame = spark.createDataFrame([("k", "v", None), ("k", "v", named)], "key STRING, value STRING, t STRING")
        with pytest.raises(RefusedError, match=message):
            out.coordinator.process(out.sink.prepare(frame), number)
    assert (read(kafka_config, default), read(kafka_config, source), out.commits) == ([], [], [])
    assert [message.key() for message in read(kafka_config, ledger)] == [b"run/1"]


@pytest.mark.parametrize("codec", ["none", "zstd", *SLOW_CODECS])
def test_a_compressed_batch_is_read_back_record_by_record(
    spark: Any,
    open_sink: Callable[..., Written],
    kafka_config: dict[str, str],
    make_topic: Callable[..., str],
    codec: str,
) -> None:
    topic = make_topic(partitions=3, **{"message.timestamp.type": "LogAppendTime"})
    frame = spark.range(20_000, numPartitions=3).selectExpr(
        "concat('k', id % 97) key", "repeat(concat('value ', id, ' '), 1 + id % 40) value"
    )
    out = open_sink(KafkaSink(topic, compression=codec))
    out.coordinator.process(out.sink.prepare(frame), 0)
    messages = read(kafka_config, topic)
    expected = sorted((row["key"].encode(), row["value"].encode()) for row in frame.collect())
    assert sorted((message.key(), message.value()) for message in messages) == expected
    assert {message.timestamp()[0] for message in messages} == {TIMESTAMP_LOG_APPEND_TIME}


def test_a_batch_whose_arrow_batches_are_counted_by_rows_is_read_back_record_by_record(
    spark: Any, open_sink: Callable[..., Written], kafka_config: dict[str, str], make_topic: Callable[..., str]
) -> None:
    topic, session = make_topic(partitions=3), spark.newSession()
    frame = session.range(40_000, numPartitions=2).selectExpr(
        "concat('k', id % 97) key", "repeat(concat('value ', id, ' '), 1 + id % 40) value"
    )
    out = open_sink(KafkaSink(topic))
    stage = out.sink.prepare(frame)
    limits = []
    for number in range(2):
        out.coordinator.process(stage, number)
        limits.append((session.conf.get(ARROW_BYTES), session.conf.get(ARROW_ROWS)))
    assert limits == [(DEFAULTS[ARROW_BYTES], "10000"), (UNLIMITED_BYTES, "4096")]
    expected = sorted((row["key"].encode(), row["value"].encode()) for row in frame.collect() for _ in limits)
    assert sorted((message.key(), message.value()) for message in read(kafka_config, topic)) == expected
    assert len({(record.rows, record.digest) for record in out.commits}) == 1


def record_batches(run: Run, topic: str) -> int:
    """Return how many record batches partition 0 has."""
    end, position, batches = run.client.offsets.last_stable([(topic, 0)])[topic, 0], 0, 0
    while position < end:
        for header in read_headers(run.client.fetch(topic, 0, position)):
            batches += not header.is_control
            position = header.last + 1
    return batches


@pytest.mark.parametrize("codec", ["zstd", *SLOW_CODECS])
def test_batches_are_filled_to_the_topics_limit_after_compression(
    spark: Any,
    open_sink: Callable[..., Written],
    kafka_config: dict[str, str],
    make_topic: Callable[..., str],
    codec: str,
) -> None:
    topic = make_topic(partitions=1, **{"max.message.bytes": "100000"})
    shrinks = spark.range(40_000, numPartitions=1).selectExpr("string(id) key", "concat(id, repeat('x', 200)) value")
    random = "unhex(concat(sha2(string(id), 512), sha2(string(-id), 512))) value"
    noise = spark.range(10_000, numPartitions=1).selectExpr("string(id) key", random)
    out = open_sink(KafkaSink(topic, compression=codec))
    out.coordinator.process(out.sink.prepare(shrinks), 0)
    assert record_batches(out.run, topic) < 40_000 * 200 / 100_000 / 2
    out.coordinator.process(out.sink.prepare(noise), 1)  # it shrinks by nothing, which the worker can't know
    received = [(message.key(), message.value()) for message in read(kafka_config, topic)]
    expected = [*shrinks.collect(), *noise.collect()]
    assert received == [(row["key"].encode(), _as_bytes(row["value"])) for row in expected]


def _as_bytes(value: str | bytearray) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def test_a_topic_that_unpacks_what_it_is_sent_gets_batches_that_fit_unpacked(
    spark: Any, open_sink: Callable[..., Written], kafka_config: dict[str, str], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=1, **{"max.message.bytes": "100000", "compression.type": "uncompressed"})
    frame = spark.range(40_000, numPartitions=1).selectExpr("string(id) key", "concat(id, repeat('x', 200)) value")
    out = open_sink(KafkaSink(topic, compression="zstd"))
    out.coordinator.process(out.sink.prepare(frame), 0)
    received = [(message.key(), message.value()) for message in read(kafka_config, topic)]
    assert received == [(row["key"].encode(), row["value"].encode()) for row in frame.collect()]


def test_avro_is_written_in_the_wire_format_of_schema_registries(
    spark: Any, open_sink: Callable[..., Written], kafka_config: dict[str, str], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=1)
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}]
    schema = {"type": "record", "name": "Person", "fields": fields}
    frame = spark.createDataFrame([(1, "ü"), (2, None)], "id BIGINT NOT NULL, name STRING")
    out = open_sink(KafkaSink(topic, key="id", value_format=AvroFormat(json.dumps(schema), schema_id=70_000)))
    out.coordinator.process(out.sink.prepare(frame), 0)
    decoded = {}
    for message in read(kafka_config, topic):
        value = message.value() or b""
        assert value[:5] == b"\x00" + (70_000).to_bytes(4, "big")
        decoded[message.key()] = fastavro.schemaless_reader(io.BytesIO(value[5:]), schema)
    assert decoded == {b"1": {"id": 1, "name": "ü"}, b"2": {"id": 2, "name": None}}


def test_a_record_above_the_topics_limit_is_refused_by_name_and_nothing_commits(
    spark: Any, open_sink: Callable[..., Written], kafka_config: dict[str, str], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=2, **{"max.message.bytes": "20000"})
    out = open_sink(KafkaSink(topic))
    fits = spark.createDataFrame([("small", "x"), ("full", "y" * 19_900)], "key STRING, value STRING")
    out.coordinator.process(out.sink.prepare(fits), 0)
    above = spark.createDataFrame([("small", "x"), ("huge", "y" * 20_000)], "key STRING, value STRING")
    with pytest.raises(RecordTooLargeError, match=rf"{topic}.*huge.*20\d\d\d bytes.*20000"):
        out.coordinator.process(out.sink.prepare(above), 1)
    assert sorted(message.key() or b"" for message in read(kafka_config, topic)) == [b"full", b"small"]


def test_one_hot_key_is_cut_into_bodies_that_the_topic_accepts(
    spark: Any, open_sink: Callable[..., Written], kafka_config: dict[str, str], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=4, **{"max.message.bytes": "50000"})
    frame = spark.range(30_000, numPartitions=4).selectExpr("'hot' key", "concat(id, repeat('x', 90)) value")
    out = open_sink(KafkaSink(topic))
    out.coordinator.process(out.sink.prepare(frame), 0)
    values = [message.value() or b"" for message in read(kafka_config, topic)]
    assert sorted(values) == sorted(str(number).encode() + b"x" * 90 for number in range(30_000))


def test_a_partition_or_timestamp_that_the_topic_does_not_take_is_refused_by_name(
    spark: Any, open_sink: Callable[..., Written], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=2, **{"message.timestamp.before.max.ms": "3600000"})
    out = open_sink(KafkaSink(topic, partition="p", timestamp="t"))
    schema = "key STRING, value STRING, p BIGINT, t BIGINT"
    for number in (2, 2**32 + 1):
        with pytest.raises(RecordRefusedError, match=f"partition is {number}; topic {topic} has 2"):
            out.coordinator.process(out.sink.prepare(spark.createDataFrame([("k", "v", number, None)], schema)), 0)
    with pytest.raises(RecordRefusedError, match=r"message\.timestamp\.before\.max\.ms"):
        out.coordinator.process(out.sink.prepare(spark.createDataFrame([("k", "v", 1, 1_000)], schema)), 0)
    out.coordinator.process(out.sink.prepare(spark.createDataFrame([("k", "v", None, None)], schema)), 0)
    assert [record.rows for record in out.commits] == [1]


def test_a_batch_whose_tasks_take_longer_than_they_may_in_each_attempt_has_timed_out(
    spark: Any, open_sink: Callable[..., Written], make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchAttempt, "time_limit_seconds", 0.5)
    monkeypatch.setattr(sequencer_server, "_GRACE_SECONDS", 0.1)
    slow = spark.range(1).selectExpr("java_method('java.lang.Thread', 'sleep', 60000L * (id + 1)) AS value")
    out = open_sink(KafkaSink(make_topic(partitions=1)))
    with pytest.raises(BatchTimedOutError, match=r"longer than its transaction may, 0\.5 s, in each of 1 attempts"):
        out.coordinator.process(out.sink.prepare(slow), 0)


def test_sparks_own_sink_writes_no_record_to_another_partition_than_it_names(
    spark: Any, open_sink: Callable[..., Written], kafka_config: dict[str, str], make_topic: Callable[..., str]
) -> None:
    session, topic = spark.newSession(), make_topic(partitions=2)
    session.conf.set("spark.sql.ansi.enabled", "false")
    out = open_sink(KafkaSink(topic, partition="p"), writer=AtLeastOnceWriter)
    schema = "key STRING, value STRING, p BIGINT"
    out.coordinator.process(out.sink.prepare(session.createDataFrame([("k", "a", 1), ("k", "b", None)], schema)), 0)
    with pytest.raises(BatchFailedError, match="Invalid partition: -1"):
        out.coordinator.process(out.sink.prepare(session.createDataFrame([("k", "c", 2**32 + 1)], schema)), 1)
    written = {message.value(): message.partition() for message in read(kafka_config, topic)}
    assert written[b"a"] == 1
    assert len(written) == 2


@pytest.mark.parametrize("writer", [TransactionalWriter, AtLeastOnceWriter])
def test_bad_records_go_to_their_topic_with_origin_and_reason_and_are_counted(
    spark: Any,
    open_sink: Callable[..., Written],
    kafka_config: dict[str, str],
    make_topic: Callable[..., str],
    writer: Callable[[BatchAttempt], BatchWriter],
) -> None:
    source_topic, topic = make_topic(partitions=1), make_topic(partitions=2)
    bad = make_topic(partitions=1, **{"max.message.bytes": "4000000"})
    from confluent_kafka import Producer

    producer = Producer({**kafka_config})
    values = [b'{"id": 1}', b"no json", b'{"id": "x"}', None, json.dumps({"id": 7, "t": "y" * 600_000}).encode()]
    for value in values:
        producer.produce(source_topic, key=b"k", value=value, headers=[("trace", b"42")], partition=0)
    producer.flush(30)
    definition = KafkaSink(topic, bad_records="topic", bad_records_topic=bad)
    source = KafkaSource(source_topic, schema="id BIGINT NOT NULL, t STRING")
    diverts = pipeline(name="diverts", source=source, sink=definition)(lambda frame: frame)
    out = open_sink(
        definition, bad=lambda ranges: diverts.bad_source_records(spark, kafka_config, bad, ranges), writer=writer
    )
    out.source[source_topic] = {0: (0, len(values))}
    options = {
        "kafka.bootstrap.servers": kafka_config["bootstrap.servers"],
        "subscribe": source_topic,
        "startingOffsets": "earliest",
    }
    read_in = source.fitted(spark.read.format("kafka").options(**options).load(), leave_out_bad=True)
    big = read_in.selectExpr("id", "if(id = 7, repeat(t, 2), t) t")
    out.coordinator.process(out.sink.prepare(big), 0)
    assert [message.value() for message in read(kafka_config, topic)] == [b'{"id":1,"t":null}']
    reasons = {}
    for message in read(kafka_config, bad):
        headers = cast(dict[str, bytes], dict(message.headers() or ()))
        reasons[headers["exactlyonce.origin"].decode()] = (headers["exactlyonce.reason"].decode(), headers.get("trace"))
    expected = {f"{source_topic}-0 offset {offset}" for offset in (1, 2, 3)} | {f"sink {topic}"}
    assert reasons.keys() == expected
    assert "not one JSON object" in reasons[f"{source_topic}-0 offset 1"][0]
    assert reasons[f"{source_topic}-0 offset 2"] == ("field id is not bigint: x", b"42")
    (record,) = out.commits
    assert "the limit of" in reasons[f"sink {topic}"][0]
    assert (record.rows, record.bad_records) == (1, 4)


def test_the_consumer_groups_offsets_follow_the_batch_and_a_live_group_is_refused(
    spark: Any, open_sink: Callable[..., Written], kafka_config: dict[str, str], make_topic: Callable[..., str]
) -> None:
    source_topic, topic = make_topic(partitions=2), make_topic(partitions=1)
    group = f"lag-{topic}"
    out = open_sink(KafkaSink(topic, offsets_group=group))
    out.source[source_topic] = {0: (0, 5), 1: (0, 9)}
    frame = spark.createDataFrame([("k", "v")], "key STRING, value STRING")
    out.coordinator.process(out.sink.prepare(frame), 0)
    admin = AdminClient(dict(kafka_config))
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    committed = {place.partition: place.offset for place in asked[group].result().topic_partitions}
    assert committed == {0: 5, 1: 9}
    member = Consumer({**kafka_config, "group.id": group})
    try:
        member.subscribe([source_topic])
        while not member.assignment():
            member.poll(0.2)
        with pytest.raises(RefusedError, match=f"consumer group {group} has members"):
            open_sink(KafkaSink(topic, offsets_group=group))
    finally:
        member.close()


def test_no_shuffle_is_added_between_the_query_and_the_sink(
    spark: Any, open_sink: Callable[..., Written], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=4)
    out = open_sink(KafkaSink(topic))
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", "plan")
    frame = spark.range(1000, numPartitions=5).selectExpr("cast(id as string) key", "cast(id as string) value")
    try:
        out.coordinator.process(out.sink.prepare(frame), 0)
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    stages = [tracker.getJobInfo(job).stageIds for job in tracker.getJobIdsForGroup("plan")]
    assert [len(of) for of in stages] == [1], "one stage: no exchange before the records are written"
    assert tracker.getStageInfo(stages[0][0]).numTasks == 5


def test_a_topic_that_is_recreated_in_mid_run_is_refused_before_the_commit(
    spark: Any, open_sink: Callable[..., Written], kafka_config: dict[str, str], make_topic: Callable[..., str]
) -> None:
    from confluent_kafka.admin import NewTopic

    topic = make_topic(partitions=1)
    out = open_sink(KafkaSink(topic))
    frame = spark.createDataFrame([("k", "v")], "key STRING, value STRING")
    out.coordinator.process(out.sink.prepare(frame), 0)
    admin = AdminClient(dict(kafka_config))
    admin.delete_topics([topic])[topic].result(30)
    while topic in admin.list_topics(timeout=30).topics:
        pass
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    with pytest.raises(ExactlyOnceError, match=f"topic {topic} was recreated"):
        out.coordinator.process(out.sink.prepare(frame), 1)
    assert len(out.commits) == 1 and read(kafka_config, topic) == []


def test_what_does_not_go_together_is_refused_when_it_is_declared() -> None:
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "needs a topic"),
        ({"topic": "t", "bad_records": "drop"}, "'stop' or 'topic'"),
        ({"topic": "t", "bad_records": "topic", "bad_records_topic": "t"}, "another one"),
        ({"topic": "t", "value_format": "xml"}, "'json', 'raw', an AvroFormat or a ProtobufFormat"),
        ({"topic": "t", "compression": "brotli"}, "brotli"),
    )
    for arguments, reason in refused:
        with pytest.raises(RefusedError, match=reason):
            KafkaSink(**arguments)


def worker_peaks() -> list[int]:
    """Return the peak resident bytes of this process's Python workers."""
    peaks = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and b"pyspark.worker" in (folder / "cmdline").read_bytes():
                status = (folder / "status").read_text()
                peaks.append(int(status.split("VmHWM:")[1].split()[0]) * 1024)
        except (OSError, IndexError):
            continue
    return peaks


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_tasks_memory_does_not_grow_with_the_batch(
    spark: Any, open_sink: Callable[..., Written], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=4)
    out = open_sink(KafkaSink(topic))
    peaks: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            peaks.extend(worker_peaks())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        frame = spark.range(10_000_000, numPartitions=2).selectExpr(
            "cast(id as string) key", "rpad(cast(id as string), 100, 'x') value"
        )
        out.coordinator.process(out.sink.prepare(frame), 0)
    finally:
        ended.set()
        watcher.join()
    assert out.commits[0].rows == 10_000_000
    assert 0 < max(peaks) < 600_000_000
