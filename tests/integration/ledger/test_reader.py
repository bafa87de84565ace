"""The ledger on a real broker: its topic, its end after aborts, retention and compaction, and hanging neighbours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.ledger import gate, records, topic
from airflow_provider_exactlyonce.ledger.gate_target import GateTarget
from airflow_provider_exactlyonce.ledger.reader import LedgerReader, LedgerTail
from airflow_provider_exactlyonce.ledger.records import ClaimRecord, CommitRecord, LedgerPointer
from airflow_provider_exactlyonce.ledger.retention import History, LedgerRetention
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions
from tests.integration.ledger.crafted import CraftedPipeline, rows_of
from tests.integration.streaming.harness import clean_audit
from tests.waiting import eventually


@pytest.fixture
def crafted(kafka_config: Mapping[str, str], make_topic: Callable[..., str]) -> Iterator[CraftedPipeline]:
    sink = make_topic(partitions=3)
    with CraftedPipeline(kafka_config, f"p-{sink}", sink) as pipeline:
        pipeline.claim()
        yield pipeline


def tail_of(crafted: CraftedPipeline) -> LedgerTail:
    with LedgerReader(crafted.config, crafted.pipeline) as reader:
        tail = reader.tail()
    assert tail is not None
    return tail


def alter(config: Mapping[str, str], name: str, **settings: str) -> None:
    entries = [
        ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for key, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    admin = AdminClient(dict(config))
    admin.incremental_alter_configs([resource])[resource].result()


@contextmanager
def hanging(config: Mapping[str, str], name: str, partitions: int) -> Iterator[Producer]:
    """Open somebody else's transaction on every partition of a topic, and leave it open."""
    producer = Producer({**config, "transactional.id": f"hangs-{name}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in range(partitions):
        producer.produce(name, b"open", partition=partition)
    assert producer.flush(10) == 0
    yield producer
    producer.abort_transaction(10)


def test_the_topic_is_created_with_the_settings_that_are_checked(kafka_config: Mapping[str, str]) -> None:
    topic.ensure(kafka_config, "settings")
    topic.ensure(kafka_config, "settings")
    name = records.ledger_topic("settings")
    resource = ConfigResource(ResourceType.TOPIC, name)
    admin = AdminClient(dict(kafka_config))
    settings = admin.describe_configs([resource])[resource].result()
    assert {key: settings[key].value for key in ("cleanup.policy", "max.message.bytes", "min.compaction.lag.ms")} == {
        "cleanup.policy": "compact",
        "max.message.bytes": "8388608",
        "min.compaction.lag.ms": "600000",
    }
    alter(kafka_config, name, max_message_bytes="1000000")
    with pytest.raises(
        SettingRefusedError, match=r"max\.message\.bytes of topic exactlyonce\.ledger\.settings is '1000"
    ):
        topic.ensure(kafka_config, "settings")


def test_a_ledger_topic_with_several_partitions_is_refused(kafka_config: Mapping[str, str]) -> None:
    name = records.ledger_topic("wide")
    admin = AdminClient(dict(kafka_config))
    admin.create_topics([NewTopic(name, 2)])[name].result()
    with pytest.raises(SettingRefusedError, match="number of partitions"):
        topic.ensure(kafka_config, "wide")


def test_a_commit_of_ten_thousand_partitions_on_either_side_is_written_and_read(crafted: CraftedPipeline) -> None:
    crafted.session.begin()
    sink_range = crafted.append(rows_of(0))[0]
    written = dict.fromkeys(range(10_000), sink_range)
    source = {"in": {partition: (10**12, 10**12 + partition) for partition in range(10_000)}}
    record = crafted.record(written, source=source, offsets="v1\n" + "x" * 250_000)
    crafted.end(record)
    crafted.settle()
    assert tail_of(crafted).commit == record


def test_the_end_is_found_behind_a_long_run_of_aborted_records(crafted: CraftedPipeline) -> None:
    committed = crafted.commit(rows_of(0))
    for _ in range(300):
        crafted.session.begin()
        crafted.session.write(crafted.ledger, 0, b"commit/2", b"aborted")
        crafted.session.abort()
    tail = tail_of(crafted)
    assert tail.commit == committed
    assert tail.end_offset > 600


def test_what_is_no_record_of_ours_is_said_to_be_foreign(crafted: CraftedPipeline) -> None:
    producer = Producer(crafted.config)
    producer.produce(crafted.ledger, b"hello", b"key")
    assert producer.flush(10) == 0
    with pytest.raises(RefusedError, match="something else writes to its topic"):
        tail_of(crafted)


def commit_with_retention(crafted: CraftedPipeline, history: History, batch: int) -> int:
    """Commit as the sink does with history that expires; returns how many records went with it."""
    expired = history.expired(crafted.place, needed_from=lambda: None, now_milliseconds=int(time.time() * 1000))
    crafted.session.begin()
    before = LedgerPointer(**{**vars(crafted.place), "oldest": expired.oldest})
    record = crafted.record(crafted.append(rows_of(batch, count=1)), before=before, committed=1_000)
    offset = crafted.session.write(crafted.ledger, 0, record.key, records.encode(record), tombstones=expired.keys)
    crafted.session.commit()
    history.committed()
    crafted.note(record, offset)
    return len(expired.keys)


def test_retention_and_compaction_leave_what_was_kept_and_the_end_is_found(
    crafted: CraftedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_exactlyonce.ledger.retention.TOMBSTONES_PER_BATCH", 4)
    monkeypatch.setattr("airflow_provider_exactlyonce.ledger.retention._WINDOW_RECORDS", 7)
    # Compacted as soon as a segment is full, and a segment soon is.
    alter(
        crafted.config,
        crafted.ledger,
        min_compaction_lag_ms="0",
        min_cleanable_dirty_ratio="0.01",
        delete_retention_ms="0",
        max_compaction_lag_ms="100",
        segment_ms="100",
    )
    for batch in range(20):
        crafted.commit(rows_of(batch, count=1), committed=1_000)
    crafted.claim()
    with LedgerReader(crafted.config, crafted.pipeline) as reader:
        history = History(reader, LedgerRetention(commits=5, days=1))
        gone = [commit_with_retention(crafted, history, batch) for batch in range(20, 40)]
    # 4 a batch until the backlog is gone: then one a batch, and the first claim and commit 1 to 35 are gone.
    assert max(gone) == 4
    assert gone[-1] == 1
    assert sum(gone) == 35
    crafted.settle()
    tail = tail_of(crafted)
    assert (tail.place.oldest, tail.place.commit, tail.place.run) == (35, 40, 2)

    def stored() -> list[int]:
        with LedgerReader(crafted.config, crafted.pipeline) as reader:
            return [record.commit for _, record in reader.records() if isinstance(record, CommitRecord)]

    def is_compacted() -> bool:
        producer = Producer({**crafted.config, "transactional.id": f"roll-{crafted.ledger}"})
        producer.init_transactions(10)
        producer.begin_transaction()  # an aborted record rolls the segment, and leaves a hole at the end
        producer.produce(crafted.ledger, b"x", b"roll")
        producer.abort_transaction(10)
        return stored()[0] > 20

    eventually(is_compacted, "old commits are compacted away")
    assert tail_of(crafted).place == tail.place
    report = clean_audit(crafted.config, crafted.pipeline)
    assert (report.first, report.last) == (35, 40)
    crafted.commit(rows_of(50))
    crafted.settle()
    assert tail_of(crafted).place.commit == 41


def test_history_chooses_the_same_again_after_an_abort(crafted: CraftedPipeline) -> None:
    for _ in range(6):
        crafted.commit({}, committed=1_000)
    crafted.settle()
    with LedgerReader(crafted.config, crafted.pipeline) as reader:
        history = History(reader, LedgerRetention(commits=2, days=1))
        now = int(time.time() * 1000)
        first = history.expired(crafted.place, needed_from=lambda: None, now_milliseconds=now)
        assert first.keys == (b"commit/1", b"commit/2", b"commit/3", b"commit/4")
        assert first.oldest == 5
        assert history.expired(crafted.place, needed_from=lambda: None, now_milliseconds=now) == first
        needed = history.expired(crafted.place, needed_from=lambda: 3, now_milliseconds=now)
        assert needed.keys == (b"commit/1", b"commit/2")


@pytest.mark.parametrize(
    ("needed", "expected"), [(None, [0, 0, 0, 3, 0, 0, 3, 0, 0]), (2, [0, 0, 0, 1, 0, 0, 0, 0, 0])], ids=str
)
def test_what_restores_need_is_asked_once_for_a_lot_of_records(
    crafted: CraftedPipeline, needed: int | None, expected: list[int]
) -> None:
    asked = 0

    def needed_from() -> int | None:
        nonlocal asked
        asked += 1
        return needed

    for _ in range(30):
        crafted.commit({}, committed=1_000)
    crafted.settle()
    with LedgerReader(crafted.config, crafted.pipeline) as reader:
        history, gone = History(reader, LedgerRetention(commits=30, days=1)), []
        for _ in expected:
            expired = history.expired(crafted.place, needed_from=needed_from, now_milliseconds=int(time.time() * 1000))
            crafted.commit({}, committed=1_000, before=replace(crafted.place, oldest=expired.oldest))
            history.committed()
            gone.append(len(expired.keys))
    assert gone == expected
    assert asked == 2


def test_anothers_open_transaction_on_the_sink_changes_no_decision_and_only_closes_the_gate(
    kafka_config: Mapping[str, str], make_topic: Callable[..., str], tmp_path: Path
) -> None:
    sink = make_topic(partitions=2)
    pipeline = f"p-{sink}"

    def run_of(token: str) -> Run:
        options = RunOptions(
            config=dict(kafka_config), token=token, version="v", transaction_timeout_milliseconds=60_000
        )
        return Run(Home(tmp_path / "home"), pipeline, options)

    with hanging(kafka_config, sink, 2), CraftedPipeline(kafka_config, pipeline, sink) as crafted:
        run = run_of("first")
        run.start()
        crafted.session, crafted.place = run.session, run.tail.place
        record = crafted.commit(rows_of(0))
        run.committed(record, crafted.place.commit_offset)
        run.reclaim()  # what a commit without an answer leads to
        assert run.tail.commit == record
        run.close()
        run = run_of("second")
        run.start()
        assert (run.number, run.tail.commit) == (2, record)
        crafted.session, crafted.place = run.session, run.tail.place
        crafted.commit(rows_of(1))
        crafted.abort(rows_of(2))
        run.close()
        verdict = gate.check(kafka_config, pipeline, GateTarget(commit=2))
        assert verdict.commit == 2
        assert not verdict.open
        assert f"{sink}-0: last stable offset 0 has not passed" in verdict.missing
    eventually(lambda: gate.check(kafka_config, pipeline, GateTarget(commit=2)).open, "the gate opens behind the abort")


def test_a_ledger_that_was_set_back_and_another_cluster_are_refused(
    kafka_config: Mapping[str, str], tmp_path: Path, make_topic: Callable[..., str]
) -> None:
    home = Home(tmp_path / "home")
    pipeline = f"p-{make_topic(partitions=1)}"

    def start() -> None:
        options = RunOptions(
            config=dict(kafka_config), token=str(time.monotonic()), version="v", transaction_timeout_milliseconds=60_000
        )
        run = Run(home, pipeline, options)
        try:
            run.start()
        finally:
            run.close()

    start()
    lineage = home.current()
    assert lineage is not None
    home.remember(replace(lineage, last_commit=7))
    with pytest.raises(RefusedError, match="The ledger was set back"):
        start()
    home.remember(replace(lineage, cluster_id="another"))
    with pytest.raises(RefusedError, match="is on cluster another"):
        start()
    home.remember(lineage)
    start()


def test_a_pointer_to_a_record_that_is_gone_is_said_to_be_damage(crafted: CraftedPipeline) -> None:
    crafted.commit({})
    claim = crafted.claim(before=LedgerPointer(commit=1, commit_offset=900, run=1, run_offset=0))
    assert isinstance(claim, ClaimRecord)
    ledger, offsets = (crafted.ledger, 0), crafted.client.offsets
    eventually(lambda: offsets.last_stable([ledger])[ledger] > crafted.place.run_offset, "readable")
    with pytest.raises(ExactlyOnceError, match="offset 900 should hold a commit"):
        tail_of(crafted)
