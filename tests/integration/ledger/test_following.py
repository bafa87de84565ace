"""A ledger followed from a stored place on, and the spans of the sink that it names, against a real broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.kafka.range_reader import RangeReader, read_range
from airflow_provider_exactlyonce.ledger.following import LedgerFollower
from airflow_provider_exactlyonce.ledger.ranges import Cut
from airflow_provider_exactlyonce.ledger.records import ledger_topic
from tests.integration.hand_written import HandWrittenPipeline, send

HOUR = 3_600_000
NEW_YEAR = 1_767_225_600_000  # 2026-01-01T00:00:00Z


@pytest.fixture
def pipeline(kafka_config: dict[str, str], make_topic: Callable[..., str]) -> HandWrittenPipeline:
    made = HandWrittenPipeline(kafka_config, source=make_topic(partitions=1), sink=make_topic(partitions=2))
    made.claim()
    return made


def commit(pipeline: HandWrittenPipeline, number: int, first: int = 1) -> None:
    for at in range(first, first + number):
        pipeline.commit({at % 2: at}, read_up_to={0: at}, watermark=NEW_YEAR + at * HOUR // 2)


def follow(pipeline: HandWrittenPipeline, cut: Cut | None, unit: str | None = None) -> LedgerFollower:
    return LedgerFollower(pipeline.config, pipeline.name, unit, cut)  # type: ignore[arg-type]


def spans(follower: LedgerFollower, most: int = 100) -> list[tuple[int, int]]:
    return [(committed.first, committed.last) for committed, _ in follower.ranges(most)]


def test_who_begins_is_told_what_comes_or_what_is_kept(pipeline: HandWrittenPipeline) -> None:
    commit(pipeline, 3)
    newest, oldest = follow(pipeline, None), follow(pipeline, None)
    assert newest.beginning(newest=True).commit == 3
    assert oldest.beginning(newest=False).commit == 0
    assert spans(oldest) == [(1, 1), (2, 2), (3, 3)]
    assert spans(newest) == spans(oldest) == []
    commit(pipeline, 2, first=4)
    assert spans(newest, most=1) == [(4, 4)]
    assert spans(newest) == [(5, 5)]
    ranges = oldest.ranges(100)
    assert [committed.first for committed, _ in ranges] == [4, 5]
    again = follow(pipeline, Cut.parse(ranges[0][1].to_json()))
    assert again.ranges(100) == ranges[1:]
    for follower in (newest, oldest, again):
        follower.close()


def test_a_range_per_hour_grows_until_the_hour_is_complete(pipeline: HandWrittenPipeline) -> None:
    follower = follow(pipeline, None, "hour")
    follower.beginning(newest=False)
    commit(pipeline, 1)
    assert spans(follower) == [(1, 1)], "the first watermark completes the hour before it"
    commit(pipeline, 2, first=2)
    assert spans(follower) == [(2, 2)]
    commit(pipeline, 1, first=4)
    [(committed, cut)] = follower.ranges(100)
    assert (committed.first, committed.last, committed.partitions) == (3, 4, ("2026-01-01T01:00:00",))
    assert cut.commit == 4
    follower.close()


def test_a_ledger_that_is_not_there_yet_is_told_from_its_beginning(
    kafka_config: dict[str, str], make_topic: Callable[..., str]
) -> None:
    name = f"later-{uuid.uuid4().hex[:8]}"
    follower = LedgerFollower(kafka_config, name, None, None)
    cut = follower.beginning(newest=True)
    assert follower.ranges(100) == []
    later = HandWrittenPipeline(kafka_config, source=make_topic(partitions=1), sink=make_topic(partitions=2), name=name)
    later.claim()
    assert follower.ranges(100) == []
    commit(later, 2)
    assert spans(follower) == [(1, 1), (2, 2)]
    again = follow(later, Cut.parse(cut.to_json()))
    assert spans(again) == [(1, 1), (2, 2)], "nobody has stored that it was told"
    follower.close()
    again.close()


def test_another_ledger_of_the_same_name_is_told_from_its_beginning_with_other_keys(
    pipeline: HandWrittenPipeline, kafka_config: dict[str, str], make_topic: Callable[..., str]
) -> None:
    commit(pipeline, 2)
    follower = follow(pipeline, None)
    follower.beginning(newest=False)
    [(first, _), (_, cut)] = follower.ranges(100)
    follower.close()
    admin = AdminClient(dict(kafka_config))
    admin.delete_topics([ledger_topic(pipeline.name)])[ledger_topic(pipeline.name)].result(30)
    other = HandWrittenPipeline(
        kafka_config, source=make_topic(partitions=1), sink=make_topic(partitions=2), name=pipeline.name
    )
    other.claim()
    commit(other, 1)
    again = follow(other, cut)
    [(committed, _)] = again.ranges(100)
    assert committed.first == first.first == 1
    assert committed.key != first.key
    again.close()


def test_a_span_is_read_to_its_end_without_what_was_aborted(
    pipeline: HandWrittenPipeline, kafka_config: Mapping[str, str]
) -> None:
    follower = follow(pipeline, None, "hour")
    follower.beginning(newest=False)
    commit(pipeline, 1)
    pipeline.producer.begin_transaction()
    pipeline.send(pipeline.sink, {0: [(b"aborted", b"v")] * 3, 1: [(b"aborted", b"v")] * 3})
    pipeline.producer.abort_transaction(30)
    commit(pipeline, 1, first=2)
    pipeline.commit({1: 2}, read_up_to={0: 3}, watermark=NEW_YEAR + HOUR)
    pipeline.producer.begin_transaction()
    pipeline.send(pipeline.sink, {0: [(b"aborted", b"v")] * 3, 1: [(b"aborted", b"v")] * 3})
    pipeline.producer.abort_transaction(30)
    pipeline.commit({1: 4, 0: 1}, read_up_to={0: 4}, watermark=NEW_YEAR + 2 * HOUR)
    pipeline.commit({1: 1, 0: 1}, read_up_to={0: 5}, watermark=NEW_YEAR + 2 * HOUR)
    ranges = follower.ranges(100)
    assert [(committed.first, committed.last, committed.rows) for committed, _ in ranges] == [
        (1, 1, 1),
        (2, 2, 2),
        (3, 4, 7),
    ]
    for committed, _ in ranges:
        records = list(read_range(kafka_config, committed.sink))
        assert len(records) == committed.rows
        assert {record.key() for record in records} == {b"k"}
        for record in records:
            first, last = committed.sink[str(record.topic())][int(record.partition() or 0)]
            assert first <= int(record.offset() or 0) <= last
    assert list(read_range(kafka_config, {})) == []
    foreign = Producer({**kafka_config, "transactional.id": f"foreign-{uuid.uuid4()}"})
    foreign.init_transactions(30)
    foreign.begin_transaction()
    [offset] = send(foreign, pipeline.sink, {0: [(b"k", b"v")]})[0]
    with (
        RangeReader(kafka_config, "test", timeout_seconds=1) as reader,
        pytest.raises(ExactlyOnceError, match=f"{pipeline.sink}-0 up to offset {offset}"),
    ):
        list(reader.read({(pipeline.sink, 0): (offset, offset + 1)}))
    foreign.abort_transaction(30)
    assert list(read_range(kafka_config, {pipeline.sink: {0: (offset, offset)}})) == []
    follower.close()
