"""What may lie between a savepoint and the restore, and under which settings Spark keeps its state."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.spark import steering
from airflow_provider_exactlyonce.streaming.spark.session import open_session
from tests.integration.streaming.harness import clean_audit
from tests.integration.streaming.replay.harness import Bench
from tests.integration.streaming.replay.shapes import RANDOM, ROWS_A_BATCH, TICKING
from tests.integration.streaming.replay.test_restore import replayed

STORE = "spark.sql.streaming.stateStore"
HASHMAP = {
    f"{STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    f"{STORE}.checkpointFormatVersion": "1",
}
CHANGELOG = {f"{STORE}.rocksdb.changelogCheckpointing.enabled": "true"}
FORMAT_1 = {f"{STORE}.checkpointFormatVersion": "1", **CHANGELOG}
MAX_POLICY = {"spark.sql.streaming.multipleWatermarkPolicy": "max"}


@pytest.fixture
def configure(jvm: None) -> Iterator[Callable[[Mapping[str, str]], None]]:
    """Give what sets settings of the session until the test ends."""
    spark, before = open_session("settings"), dict[str, str | None]()

    def configure(settings: Mapping[str, str]) -> None:
        for name, value in settings.items():
            before[name] = spark.conf.get(name, None)
            spark.conf.set(name, value)

    yield configure
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        pytest.param("windowed", HASHMAP, id="windowed in memory", marks=pytest.mark.slow),
        pytest.param("windowed", CHANGELOG, id="windowed with changelog", marks=pytest.mark.slow),
        pytest.param("update", FORMAT_1, id="update with changelog of format 1", marks=pytest.mark.slow),
        pytest.param("joined", MAX_POLICY, id="joined by the faster watermark", marks=pytest.mark.slow),
        pytest.param("joined", HASHMAP, id="joined in memory", marks=pytest.mark.slow),
    ],
)
def test_a_restore_works_with_every_way_to_keep_state(
    bench: Bench, configure: Callable[[Mapping[str, str]], None], shape: str, settings: Mapping[str, str]
) -> None:
    configure(settings)
    topics, rounds = bench.topics(shape), bench.input()
    case, plain = (bench.case(shape, topics, limit=ROWS_A_BATCH) for _ in range(2))
    for _ in range(5):
        rounds.send(topics)
    case.run(stop_at=2)
    plain.run(stop_at=2)
    saved = case.save()
    case.run()
    plain.run()
    newest = case.tail().place.commit
    case.restore(saved)
    rounds.send(topics)
    replayed(case.run(), 3, newest)
    plain.run()
    assert case.written() == plain.written()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_everything_that_happens_to_one_pipeline_leaves_what_its_twin_writes(bench: Bench) -> None:
    topics, rounds = bench.topics("windowed"), bench.input()
    case, plain = (bench.case("windowed", topics, limit=ROWS_A_BATCH) for _ in range(2))
    for _ in range(3):
        rounds.send(topics)
    case.run(stop_at=1)
    saved = case.save()
    case.run()
    first, newest = case.home.current(), case.tail().place.commit
    assert first is not None

    # The original is lost, and the replay is stopped on its way: it goes on where it was.
    shutil.rmtree(case.home.lineages / first.id / "checkpoint")
    restored = case.restore(saved)
    assert restored.span is not None
    assert (restored.span.first, restored.span.last) == (2, newest)
    stopped = case.run(stop_at=2)
    assert stopped.replay is not None
    assert (stopped.replay.done, stopped.commit) == (2, newest)
    replayed(case.run(), 3, newest)

    # Another version ran since, and commits of it are in the span, with a batch without data at their end.
    rounds.send(topics)
    case.run(compression="gzip")
    foreign, newest = newest + 1, case.tail().place.commit
    case.restore(saved)
    replay = case.run().replay
    assert replay is not None
    assert [(span[1], span[2]) for span in replay.not_compared] == [(foreign, newest)]
    assert (replay.done, replay.diverged) == (newest, [])

    # Somebody has removed the newest files of the checkpoint.
    rounds.send(topics)
    case.run()
    current, newest = case.home.current(), case.tail().place.commit
    assert current is not None
    checkpoint = Checkpoint(case.home.checkpoint(current.id))
    for lost in (current.batch_of(newest) - 1, current.batch_of(newest)):
        checkpoint.removal("offsets", lost)()
        checkpoint.removal("commits", lost)()
    rounds.send(topics)
    replay = case.run().replay
    assert replay is not None
    assert (replay.first, replay.done) == (newest - 1, newest)

    plain.run()
    assert case.written() == plain.written()
    clean_audit(case.config, case.name)

    # The lineage that was abandoned is refused, and nothing happens.
    runs = case.tail().place.run
    case.home.use(first.id)
    case.run(expected=64)
    assert case.tail().place.run == runs


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_added_partition_is_replayed_one_start_per_batch_where_spark_can_not_be_steered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics, rounds = bench.topics("windowed"), bench.input()
    case, plain = (bench.case("windowed", topics, limit=ROWS_A_BATCH) for _ in range(2))
    for _ in range(2):
        rounds.send(topics)
    case.run(stop_at=1)
    plain.run()
    saved = case.save()
    case.run()
    admin = AdminClient(dict(case.config))
    admin.create_partitions([NewPartitions(topics[""], 3)])[topics[""]].result(30)
    rounds.send(topics, partitions=3)
    case.run()
    plain.run()
    newest = case.tail().place.commit
    case.restore(saved)
    replayed(case.run(), 2, newest)
    case.restore(saved)
    with monkeypatch.context() as patch:
        patch.setattr(steering, "_FIELDS", (("org.apache.spark.sql.classic.SparkSession", "no such field"),))
        rounds.send(topics, partitions=3)
        replay = case.run().replay
    plain.run()
    assert replay is not None
    assert "no such field" in str(replay.one_start_per_batch)
    assert (replay.done, replay.diverged) == (newest, [])
    assert case.written() == plain.written()
    clean_audit(case.config, case.name)


@pytest.mark.slow  # that they are found and named is a test of its own
@pytest.mark.timeout(3600)
def test_random_rows_are_refused_by_name_unless_they_are_accepted_and_then_told(bench: Bench) -> None:
    topics, rounds = bench.topics("update"), bench.input()
    case = bench.case(RANDOM, topics, limit=ROWS_A_BATCH)
    for _ in range(3):
        rounds.send(topics)
    case.run(stop_at=1)
    saved = case.save()
    case.run()
    written = case.written()
    current, runs = case.home.current(), case.tail().place.run
    with pytest.raises(RefusedError, match=r"commits 2 to 3 have to be replayed.*: Rand is not deterministic"):
        case.restore(saved)
    assert case.home.current() == current
    case.run()
    assert case.written() == written, "it goes on as if nothing had been asked for"
    shutil.rmtree(case.home.lineages / str(current and current.id) / "jobs")  # what tells the restore
    case.restore(saved)
    runs = case.tail().place.run
    case.run(expected=64)
    assert case.tail().place.run == runs, "it was refused before anybody was fenced"
    replay = case.run(accept_nondeterminism=True).replay
    assert replay is not None
    assert (replay.done, replay.diverged) == (3, [2, 3])
    assert case.written() == written
    clean_audit(case.config, case.name)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_replay_does_not_wait_for_the_trigger(bench: Bench) -> None:
    topics, rounds = bench.topics("update"), bench.input()
    case = bench.case("update", topics, limit=ROWS_A_BATCH)
    for _ in range(4):
        rounds.send(topics)
    case.run(stop_at=1)
    saved = case.save()
    case.run()
    case.restore(saved)
    replayed(case.run(until="forever", interval="10 minutes", stop_at=4), 2, 4)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_reemit_writes_again_what_followed_the_savepoint_and_the_audit_knows_why(bench: Bench) -> None:
    topics, rounds = bench.topics("update"), bench.input()
    case = bench.case("update", topics, limit=ROWS_A_BATCH)
    for _ in range(3):
        rounds.send(topics)
    case.run(stop_at=1)
    saved = case.save()
    once = case.written()
    case.run()
    twice = case.written() - once
    case.restore(saved, mode="reemit")
    assert case.run().commit == 5
    assert case.written() == once + twice + twice
    clean_audit(case.config, case.name)

    # Nothing followed this one: its restore has nothing to replay, to refuse or to write again.
    rounds.send(topics)
    case.run()
    written, newest = case.written(), case.save()
    for mode in ("fail", "reemit", "suppress"):
        assert case.restore(newest, mode=mode).span is None
        last_status = case.run()
        assert (last_status.replay, last_status.commits_of_run) == (None, 0)
    assert case.written() == written
    rounds.send(topics)
    assert case.run().commit == 7
    clean_audit(case.config, case.name)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_large_batches_are_replayed_like_small_ones(bench: Bench) -> None:
    topics, rounds = bench.topics("windowed"), bench.input(rows=50_000)
    case, plain = (bench.case("windowed", topics) for _ in range(2))
    for count in range(3):
        rounds.send(topics)
        case.run()
        plain.run()
        if count == 0:
            saved = case.save()
    first, newest = Savepoints(case.home.savepoints).get(saved).commit + 1, case.tail().place.commit
    case.restore(saved)
    rounds.send(topics)
    replayed(case.run(), first, newest)
    plain.run()
    assert case.written() == plain.written()
    clean_audit(case.config, case.name)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_timers_and_expiry_by_processing_time_are_replayed_as_they_were(bench: Bench) -> None:
    topics, rounds = bench.topics("update"), bench.input()
    case = bench.case(TICKING, topics, limit=ROWS_A_BATCH)
    for _ in range(8):
        rounds.send(topics)
    case.run(stop_at=2)
    saved = case.save()
    case.run()
    newest, written = case.tail().place.commit, case.written()
    assert any(json.loads(row)["n"] < 0 for row in written), "timers have expired"
    case.restore(saved)
    replayed(case.run(), 3, newest)
    clean_audit(case.config, case.name)
