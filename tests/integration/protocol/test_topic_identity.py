"""Topics that are deleted and made again, in a run's life and between lives: by their ids, not by their offsets."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_exactlyonce.backfill.plan import BackfillStep
from airflow_provider_exactlyonce.backfill.progress import BackfillProgress
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka.wire import WireClient
from airflow_provider_exactlyonce.ledger.commit_range import CommitSpan, check_input
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.ledger.source_clusters import SourceClusters
from airflow_provider_exactlyonce.streaming.replay.backfill_batches import BackfillBatches, BackfillOptions
from airflow_provider_exactlyonce.streaming.sinks.kafka.sink import KafkaSink
from tests.integration.protocol.alone import Alone, Frame


@pytest.fixture
def alone(tmp_path: Path, kafka_config: Mapping[str, str], make_topic: Callable[..., str]) -> Alone:
    return Alone(
        config=kafka_config,
        name=f"alone-{uuid.uuid4().hex[:8]}",
        source=make_topic(partitions=1),
        home=Home(tmp_path / "home"),
        kafka=KafkaSink(make_topic(partitions=1), key="k"),
    )


def id_of(config: Mapping[str, str], topic: str) -> str:
    client = WireClient(dict(config))
    described = client.metadata(topic)
    client.close()
    assert described is not None
    return described.topic_id


def delete(config: Mapping[str, str], topic: str) -> None:
    admin = AdminClient(dict(config))
    admin.delete_topics([topic])[topic].result(30)
    while topic in admin.list_topics(timeout=10).topics:
        time.sleep(0.01)


def make(config: Mapping[str, str], topic: str) -> None:
    admin = AdminClient(dict(config))
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    while admin.list_topics(topic, timeout=10).topics[topic].error:
        time.sleep(0.01)


def recreate(config: Mapping[str, str], topic: str, *, records: int = 0) -> None:
    """Delete a topic and make it again, with as many records as are asked for."""
    delete(config, topic)
    make(config, topic)
    producer = Producer(dict(config))
    for number in range(records):
        producer.produce(topic, str(number))
    assert producer.flush(30) == 0


def newest(alone: Alone) -> CommitRecord:
    with LedgerReader(alone.config, alone.name) as reader:
        tail = reader.tail()
    assert tail is not None and tail.commit is not None
    return tail.commit


def test_a_source_that_is_recreated_between_two_batches_of_a_living_run_stops_it_before_it_reads_on(
    alone: Alone,
) -> None:
    before = id_of(alone.config, alone.source)
    with alone.life() as life:
        life.fit()
        life.batch(0)
        recreate(alone.config, alone.source, records=30)  # as many as before, and more
        with pytest.raises(RefusedError) as raised:
            life.batch(1)
        message = str(raised.value)
        for part in (alone.source, f"commit 1 read it with id {before}", id_of(alone.config, alone.source)):
            assert part in message, message
    assert newest(alone).commit == 1


def test_a_source_that_is_recreated_while_only_empty_batches_are_committed_is_noticed(alone: Alone) -> None:
    with alone.life() as life:
        life.fit()
        life.batch(0)
        life.batch(1, end=10)
        recreate(alone.config, alone.source, records=10)
        with pytest.raises(RefusedError, match="commit 2 read it with id"):
            life.batch(2, end=10)


def test_a_committed_batch_is_not_run_again_on_a_source_that_is_another_topic(alone: Alone) -> None:
    with alone.life() as life:
        life.fit()
        life.batch(0)
        life.batch(1, noted=False)
    with alone.life() as life:
        life.fit()
        recreate(alone.config, alone.source, records=20)
        with pytest.raises(RefusedError, match="commit 2 read it with id"):
            life.batch(1)


@pytest.mark.slow
def test_a_replayed_commit_is_compared_with_its_own_topic_not_with_the_newest_commits(alone: Alone) -> None:
    with alone.life() as life:
        life.fit()
        for number in range(3):
            life.batch(number)
    alone.lineage_at(1)
    with LedgerReader(alone.config, alone.name) as reader:
        _, second, third = reader.commits()
    with alone.life() as life:
        life.fit()
        life.batch(1, recorded=second)
        with pytest.raises(RefusedError, match="commit 3 read it with id gone"):
            life.batch(2, recorded=replace(third, source_topic_ids={alone.source: "gone"}))


def test_a_sink_topic_that_is_recreated_after_empty_commits_is_refused_and_what_is_gone_is_said(alone: Alone) -> None:
    assert alone.kafka is not None
    sink, before = str(alone.kafka.topic), id_of(alone.config, str(alone.kafka.topic))
    with alone.life() as life:
        life.fit()
        life.batch(0)
    with alone.life() as life:  # which never writes to it
        life.fit()
        life.batch(1, end=10)
        life.batch(2, end=10)
    recreate(alone.config, sink)
    with pytest.raises(RefusedError) as raised, alone.life():
        pass
    for part in (sink, f"commit 1 wrote to it with id {before}", "is gone"):
        assert part in str(raised.value), str(raised.value)


def by_row(alone: Alone, topics: Callable[[int], str]) -> Alone:
    def row(offset: int) -> dict[str, Any]:
        return {"id": offset, "k": f"k{offset % 7}", "topic": topics(offset // 10)}

    return replace(alone, kafka=KafkaSink(key="k", topic_column="topic"), rows=row)


def test_a_topic_that_rows_name_again_is_known_by_its_id_however_many_commits_have_not_named_it(
    alone: Alone, make_topic: Callable[..., str]
) -> None:
    seldom, often = make_topic(partitions=1), make_topic(partitions=1)
    named = by_row(alone, lambda batch: seldom if batch in (0, 3) else often)
    with named.life() as life:
        life.fit()
        for number in range(3):
            life.batch(number)
    assert newest(named).earlier_sink_topics == {seldom: (id_of(alone.config, seldom), 1)}
    recreate(alone.config, seldom)
    with named.life() as life:
        life.fit()
        with pytest.raises(RefusedError, match=rf"topic {seldom} .*commit 1 wrote to it"):
            life.batch(3)
    assert newest(named).commit == 3


def test_a_topic_that_rows_named_and_that_is_gone_when_a_run_starts_may_be_made_again(
    alone: Alone, make_topic: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    tenant, other = make_topic(partitions=1), make_topic(partitions=1)
    named = by_row(alone, lambda batch: tenant if batch in (0, 2) else other)
    with named.life() as life:
        life.fit()
        life.batch(0)
    delete(alone.config, tenant)
    with named.life() as life:
        life.fit()
        life.batch(1)
        assert f"topic {tenant}, which commit 1 wrote to, is gone" in caplog.text
        make(alone.config, tenant)
        life.batch(2)
    assert newest(named).sink_topic_ids == {tenant: id_of(alone.config, tenant)}


@pytest.mark.slow
def test_a_topic_that_the_job_does_not_declare_any_more_is_forgotten(
    alone: Alone, make_topic: Callable[..., str]
) -> None:
    assert alone.kafka is not None
    with alone.life() as life:
        life.fit()
        life.batch(0)
    moved = replace(alone, kafka=KafkaSink(make_topic(partitions=1), key="k"))
    with moved.life() as life:
        life.fit()
        life.batch(1)
    recreate(alone.config, str(alone.kafka.topic))
    with alone.life() as life:
        life.fit()
        life.batch(2)
    assert newest(alone).commit == 3


def test_a_span_that_would_be_run_again_on_a_source_that_was_made_again_is_refused_when_it_is_asked_for(
    alone: Alone,
) -> None:
    with alone.life() as life:
        life.fit()
        life.batch(0)
    span = CommitSpan(first=1, last=1)
    span.add(newest(alone))
    check_input(SourceClusters(alone.config, {}), span)
    recreate(alone.config, alone.source, records=20)
    with pytest.raises(RefusedError, match="commit 1 read it with id"):
        check_input(SourceClusters(alone.config, {}), span)


class Range:
    """A backfill's steps, none of which is written."""

    done = BackfillProgress(base=0)

    def begin(self, number: int, planned: object) -> BackfillStep:
        return BackfillStep(ends={}, emits=False)

    def recorded(self) -> None:
        return None

    def finish(self, number: int, **changes: Any) -> None:
        pass


def test_a_backfill_does_not_build_its_state_from_a_source_that_is_made_again_meanwhile(alone: Alone) -> None:
    with alone.life() as life:
        life.plan_next(0)
        batches = BackfillBatches(
            life.run,
            life.sink,
            cast(Any, Range()),
            life.checkpoint,
            BackfillOptions(
                writes=False,
                accept_nondeterminism=False,
                max_batch_attempts=1,
                stop_reason=lambda: None,
                committed=lambda record: None,
                progressed=lambda: None,
            ),
        )
        batches.process(cast(Any, Frame([])), 0)
        recreate(alone.config, alone.source, records=20)
        life.plan_next(1)
        with pytest.raises(RefusedError, match=f"source topic {alone.source} was recreated while the backfill ran"):
            batches.process(cast(Any, Frame([])), 1)
