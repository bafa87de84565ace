"""What a range means in a real cluster, and what is refused because it is not there."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_provider_exactlyonce.backfill import resolve
from airflow_provider_exactlyonce.backfill.request import BackfillRequest
from airflow_provider_exactlyonce.backfill.resolve import Resolved, Resolver
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.kafka.stable_offsets import StableOffsets
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.source_clusters import SourceClusters
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics
from tests.integration.hand_written import HandWrittenPipeline, send
from tests.waiting import eventually

HOUR = 3_600_000
BEGIN = 1_767_225_600_000  # 2026-01-01T00:00:00Z


@pytest.fixture
def source(kafka_config: Mapping[str, str], make_topic: Callable[..., str]) -> str:
    """Give a topic of three partitions: six records, one for each quarter of an hour, in the first two."""
    topic = make_topic(partitions=3, **{"retention.ms": "-1"})
    producer = Producer(dict(kafka_config))
    for partition in (0, 1):
        for number in range(6):
            producer.produce(topic, b"x", partition=partition, timestamp=BEGIN + number * HOUR // 4)
    assert producer.flush(30) == 0
    return topic


@pytest.fixture
def ask(kafka_config: Mapping[str, str], source: str, tmp_path: Path) -> Callable[..., Resolved]:
    def resolved(**given: Any) -> Resolved:
        request = BackfillRequest.parse(**{"state": "empty", "output": "topic=t", **given})
        clusters, sources = SourceClusters(kafka_config, {}), [SourceTopics.of(source)]
        with LedgerReader(kafka_config, f"p-{source}") as reader:
            return Resolver(reader, clusters, sources, Savepoints(tmp_path)).resolve(request)

    return resolved


def positions(topic: str, *offsets: int) -> dict[tuple[str, int], int]:
    return {(topic, partition): offset for partition, offset in enumerate(offsets)}


def test_a_range_of_time_has_the_records_from_its_start_to_before_its_end(
    ask: Callable[..., Resolved], source: str
) -> None:
    resolved = ask(start="2026-01-01T00:15", end="2026-01-01T01:00")
    assert (resolved.starts, resolved.ends) == (positions(source, 1, 1, 0), positions(source, 4, 4, 0))
    rest = ask(start="2026-01-01T01:00", end="2026-01-02T00:00")
    assert (rest.starts, rest.ends) == (resolved.ends, positions(source, 6, 6, 0))
    warm = ask(start="2026-01-01T01:00", end="2026-01-02T00:00", warm_up="30m")
    assert warm.begins == positions(source, 2, 2, 0)


@pytest.mark.parametrize("behind", [(), (BEGIN + 2 * HOUR,)], ids=["nothing is later", "a record is later"])
def test_a_range_of_time_waits_for_the_transactions_that_are_open_in_it(
    ask: Callable[..., Resolved],
    source: str,
    kafka_config: Mapping[str, str],
    behind: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolve, "_DECIDED_SECONDS", 0.0)
    producer = Producer({**kafka_config, "transactional.id": f"t-{uuid.uuid4()}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    send(producer, source, {0: [(b"k", b"x")]}, timestamp=BEGIN + 7 * HOUR // 4)
    for timestamp in behind:
        send(Producer(dict(kafka_config)), source, {0: [(b"k", b"x")]}, timestamp=timestamp)
    with pytest.raises(
        ExactlyOnceError, match=rf"offset 7 of {source}-0, .* ends at 6: a transaction is open"
    ) as error:
        ask(start="2026-01-01T01:00", end="2026-01-01T02:00")
    assert not isinstance(error.value, RefusedError), "a retry helps"
    assert ask(start="2026-01-01T00:00", end="2026-01-01T01:00").ends == positions(source, 4, 4, 0)
    producer.commit_transaction(30)
    stable = StableOffsets(kafka_config)
    eventually(lambda: stable.last_stable([(source, 0)])[source, 0] > 7, "the transaction's marker is written")
    assert ask(start="2026-01-01T01:00", end="2026-01-01T02:00").ends == positions(source, 7, 6, 0)


def test_a_range_of_offsets_reads_the_partitions_that_it_names(ask: Callable[..., Resolved], source: str) -> None:
    resolved = ask(offsets={source: {1: [2, 5]}})
    assert (resolved.starts, resolved.ends) == ({(source, 1): 2}, {(source, 1): 5})
    assert resolved.begins == positions(source, 6, 2, 0), "the others have no record to read"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"offsets": {"SOURCE": {1: [2, 9]}}}, "ends at offset 9 of SOURCE-1, and what is committed there ends at 6"),
        ({"offsets": {"SOURCE": {7: [0, 1]}}}, "SOURCE-7 is no partition of a source of p-SOURCE"),
        ({"start": "2026-01-01", "end": "2200-01-01"}, "in the future: what belongs to it is not known yet"),
        ({"commits": "1..2"}, "the ledger of p-SOURCE has none"),
        ({"start": "2026-01-01", "end": "2026-01-02", "state": "savepoint"}, "Begin with an empty one: state 'empty'"),
        ({"start": "2026-01-01", "end": "2026-01-02", "output": "compare"}, "no commit of p-SOURCE has read anything"),
    ],
)
def test_what_is_not_there_is_refused(
    ask: Callable[..., Resolved], source: str, given: dict[str, Any], message: str
) -> None:
    if "offsets" in given:
        given = {"offsets": {source: given["offsets"]["SOURCE"]}}
    with pytest.raises(RefusedError) as refused:
        ask(**given)
    assert message.replace("SOURCE", source) in str(refused.value)


def test_records_that_retention_has_taken_are_missed(
    ask: Callable[..., Resolved], source: str, kafka_config: Mapping[str, str]
) -> None:
    admin = AdminClient(dict(kafka_config))
    for future in admin.delete_records([TopicPartition(source, 0, 3)]).values():
        future.result(30)
    with pytest.raises(RefusedError, match=rf"the log of {source}-0 begins at offset 3, and what was before it"):
        ask(start="2026-01-01T00:15", end="2026-01-01T01:00")
    with pytest.raises(RefusedError, match=rf"are gone: {source}-0, offsets 2 to 2\. Choose a later range"):
        ask(offsets={source: {0: [2, 5]}})
    resolved = ask(start="2026-01-01T01:00", end="2026-01-02T00:00")
    assert resolved.starts == positions(source, 4, 4, 0)
    with pytest.raises(RefusedError, match=rf"the log of {source}-0 begins at offset 3, .*of the warm-up may be gone"):
        ask(start="2026-01-01T01:00", end="2026-01-02T00:00", warm_up="30m")
    warm = ask(start="2026-01-01T01:15", end="2026-01-02T00:00", warm_up="15m")
    assert warm.begins == positions(source, 4, 4, 0)


def test_of_a_partition_that_retention_has_emptied_no_start_is_advised(
    ask: Callable[..., Resolved], source: str, kafka_config: Mapping[str, str]
) -> None:
    admin = AdminClient(dict(kafka_config))
    for future in admin.delete_records([TopicPartition(source, 0, 6)]).values():
        future.result(30)
    with pytest.raises(RefusedError, match=rf"the log of {source}-0 is empty.* Give the range by offsets, without"):
        ask(start="2026-01-01T01:00", end="2026-01-02T00:00")
    assert ask(offsets={source: {1: [4, 6]}}).ends == {(source, 1): 6}


@pytest.mark.parametrize(
    "given",
    [
        {"watermark": "2026-01-01T00:15..2026-01-01T01:00"},
        {"offsets": {"SOURCE": {0: [1, 5]}}, "output": "compare", "state": "savepoint"},
        {"commits": "11..11", "warm_up": 2},
    ],
)
def test_what_a_ledger_has_forgotten_is_missed_where_a_range_may_begin_in_it(
    ask: Callable[..., Resolved],
    source: str,
    kafka_config: Mapping[str, str],
    make_topic: Callable[..., str],
    given: dict[str, Any],
) -> None:
    pipeline = HandWrittenPipeline(kafka_config, source=source, sink=make_topic(), name=f"p-{source}")
    pipeline.place = replace(pipeline.place, commit=9, oldest=10)
    pipeline.ends = {0: 2, 1: 2}
    pipeline.claim()
    for commit in range(2):
        end = 3 + commit
        pipeline.commit({}, read_up_to={0: end, 1: end}, watermark=BEGIN + (1 + commit) * HOUR)
    if "offsets" in given:
        given = {**given, "offsets": {source: given["offsets"]["SOURCE"]}}
    with pytest.raises(RefusedError, match=r"may be one that the ledger of p-.* has forgotten: it has 10 to 11\."):
        ask(**given)
    assert ask(commits="11..11", warm_up=1).begins == positions(source, 2, 2), "commit 10 is there"


def test_commits_whose_topic_was_deleted_are_missed(
    ask: Callable[..., Resolved], source: str, kafka_config: Mapping[str, str], make_topic: Callable[..., str]
) -> None:
    """A pattern reads on when one of its topics is deleted."""
    pipeline = HandWrittenPipeline(kafka_config, source=f"{source}-deleted", sink=make_topic(), name=f"p-{source}")
    pipeline.claim()
    pipeline.commit({}, read_up_to={0: 3})
    pipeline.commit({}, read_up_to={0: 3})
    with pytest.raises(RefusedError, match=rf"are gone: {source}-deleted-0, offsets 0 to 2\. Choose a later range"):
        ask(commits="1..1")
    assert ask(commits="2..2").ends == {(f"{source}-deleted", 0): 3}, "nothing of it is read"
