"""A pipeline whose state got another number of partitions wrote what one that kept its own did, record by record."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.failpoints import RESCALE_NAMES, RESTORE_NAMES
from airflow_provider_exactlyonce.streaming.replay.rescale import Rescaled, rescale
from airflow_provider_exactlyonce.streaming.spark.repartition import Repartition
from airflow_provider_exactlyonce.streaming.spark.session import open_session
from tests import commands
from tests.integration.streaming.harness import clean_audit
from tests.integration.streaming.replay.harness import Bench, Case
from tests.integration.streaming.replay.shapes import ROWS_A_BATCH, SHAPES, Input, Shape
from tests.integration.streaming.replay.test_restore import replayed
from tests.integration.streaming.replay.test_variants import CHANGELOG, FORMAT_1, HASHMAP, configure

__all__ = ["configure"]  # a fixture
Configure = Callable[[Mapping[str, str]], None]


def total(events: DataFrame) -> DataFrame:
    return events.agg(F.count("*").alias("n")).select(F.lit("all").alias("k"), "n")


def rescaled(case: Case, partitions: int, **given: Any) -> Rescaled:
    """Rescale a pipeline that is stopped; its original stays as it was."""
    before = case.home.current()
    assert before is not None
    original = snapshot(case, before.id)
    done = rescale(case.home, case.name, case.config, partitions, spark=open_session("rescale"), **given)
    after = case.home.current()
    assert after is not None
    assert done.lineage is not None
    assert (after.id, done.partitions) == (done.lineage.id, partitions)
    assert snapshot(case, before.id) in ({}, original), "the original is read only"
    conf = Checkpoint(case.home.checkpoint(after.id)).conf()
    assert conf["spark.sql.shuffle.partitions"] == str(partitions)
    assert not list(case.home.lineages.glob(".*")), "no working copy is left"
    return done


def snapshot(case: Case, lineage: str) -> dict[str, bytes]:
    folder = case.home.checkpoint(lineage)
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def two_pipelines(bench: Bench, shape: str | Shape) -> tuple[Mapping[str, str], Input, Case, Case]:
    topics = bench.topics(shape if isinstance(shape, str) else "update")
    case, plain = (bench.case(shape, topics, limit=ROWS_A_BATCH) for _ in range(2))
    return topics, bench.input(), case, plain


def run_both(topics: Mapping[str, str], rounds: Input, *cases: Case, count: int = 3, **changes: Any) -> None:
    for _ in range(count):
        rounds.send(topics)
    for case in cases:
        case.run(**changes)


def prove(bench: Bench, shape: str, *steps: int) -> None:
    """Rescale again and again, and go on after each; then restore what was saved before and after."""
    topics, rounds, case, plain = two_pipelines(bench, shape)
    run_both(topics, rounds, case, plain)
    early = case.save()
    for partitions in steps:
        done = rescaled(case, partitions)
        assert done.span is None
        assert sum(store["rows"] for store in done.state) > 0
        run_both(topics, rounds, case, plain)
        assert case.written() == plain.written(), f"after the rescale to {partitions}"
    late = case.save()
    run_both(topics, rounds, case, plain, count=1)
    for saved in (late, early):  # the early one has other settings than the commits that are replayed
        check_restore(case, saved)
        run_both(topics, rounds, case, plain, count=1)
        assert case.written() == plain.written(), f"after the restore of {saved}"
    clean_audit(case.config, case.name)


def check_restore(case: Case, saved: str) -> None:
    newest = case.tail().place.commit
    case.restore(saved)
    replayed(case.run(), Savepoints(case.home.savepoints).get(saved).commit + 1, newest)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_rescaled_pipeline_writes_what_its_twin_does_and_restores_from_before_and_after(bench: Bench) -> None:
    topics, rounds, case, plain = two_pipelines(bench, "windowed")
    run_both(topics, rounds, case, plain)
    early, abandoned = case.save(), case.home.current()
    assert abandoned is not None
    rescaled(case, 4)
    late = Savepoints(case.home.savepoints).get(case.save())
    assert [operator.partitions for operator in late.operators] == [4]
    run_both(topics, rounds, case, plain, count=1)
    check_restore(case, early)
    run_both(topics, rounds, case, plain, count=1)
    assert case.written() == plain.written()
    clean_audit(case.config, case.name)
    case.home.use(abandoned.id)
    case.run(expected=64)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_keyed_state_goes_through_a_savepoint_a_rescale_and_a_restore(bench: Bench) -> None:
    topics, rounds, case, plain = two_pipelines(bench, "keyed")
    run_both(topics, rounds, case, plain, count=2)
    saved = case.save()
    rescaled(case, 3)
    run_both(topics, rounds, case, plain, count=2)
    check_restore(case, saved)
    run_both(topics, rounds, case, plain, count=1)
    assert case.written() == plain.written()
    rows = [json.loads(row) for row in case.written()]
    assert len([row for row in rows if row["at"] < 0]) > 5, "timers of every span have fired"
    clean_audit(case.config, case.name)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_what_can_not_be_rescaled_is_refused_by_name_and_nothing_is_changed(bench: Bench, configure: Configure) -> None:
    topics, rounds = bench.topics("update"), bench.input()
    case, keyless = bench.case("update", topics), bench.case(Shape(total, "update"), topics)
    spark = open_session("rescale")
    with pytest.raises(RefusedError, match="is the home of no pipeline"):
        rescale(case.home, case.name, case.config, 4, spark=spark)
    run_both(topics, rounds, case, keyless)
    run_both(topics, rounds, keyless)
    current = case.home.current()
    with pytest.raises(RefusedError, match="0 state partitions: at least 1"):
        rescale(case.home, case.name, case.config, 0, spark=spark)
    assert rescale(case.home, case.name, case.config, 2, spark=spark).lineage is None
    with (
        leases.holding(case.home.lease, case.name, "t"),
        pytest.raises(AlreadyRunningError, match=r"savepoint .*--stop"),
    ):
        rescale(case.home, case.name, case.config, 4, spark=spark)
    with pytest.raises(RefusedError, match=r"operator 0 \(stateStoreSave\) .* has state without keys"):
        rescale(keyless.home, keyless.name, keyless.config, 4, spark=spark)
    configure(HASHMAP)
    stateless, memory = bench.case("stateless", topics), bench.case("update", topics)
    stateless.run()
    memory.run()
    with pytest.raises(RefusedError, match="keeps no state: its tasks follow the partitions of its source"):
        rescale(stateless.home, stateless.name, stateless.config, 4, spark=spark)
    with pytest.raises(RefusedError, match=r"in hashmap, which Spark can't repartition.*StateBackend.rocksdb"):
        rescale(memory.home, memory.name, memory.config, 4, spark=spark)
    assert case.home.current() == current
    assert all(len(list(unchanged.home.lineages.iterdir())) == 1 for unchanged in (case, keyless, stateless, memory))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "stateless"])
def test_2_to_4_4_to_2_3_to_7_partitions(bench: Bench, shape: str) -> None:
    prove(bench, shape, 4, 2, 3, 7)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("settings", [CHANGELOG, FORMAT_1], ids=["changelog", "changelog of format 1"])
def test_every_way_to_keep_state_in_rocksdb_can_be_rescaled(
    bench: Bench, configure: Configure, settings: Mapping[str, str]
) -> None:
    configure(settings)
    prove(bench, "windowed", 4, 2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_what_the_sink_has_and_the_state_has_not_is_replayed_after_the_rescale(bench: Bench) -> None:
    topics, rounds, case, plain = two_pipelines(bench, "windowed")
    run_both(topics, rounds, case, plain)
    saved = case.save()
    run_both(topics, rounds, case, plain)
    newest = case.tail().place.commit

    # The driver died after the sink's commit and before Spark's own.
    current = case.home.current()
    assert current is not None
    Checkpoint(case.home.checkpoint(current.id)).removal("commits", current.batch_of(newest))()
    done = rescaled(case, 4)
    assert done.span is not None
    assert (done.commit, done.span.first, done.span.last) == (newest - 1, newest, newest)
    replayed(case.run(), newest, newest)
    run_both(topics, rounds, case, plain, count=1)
    assert case.written() == plain.written()

    # A savepoint was restored and not started yet. Then Spark has planned a batch that was never begun.
    newest = case.tail().place.commit
    case.restore(saved)
    restored = case.home.current()
    assert restored is not None
    done = rescaled(case, 3)
    assert not case.home.checkpoint(restored.id).exists(), "it was never started, and is gone"
    assert done.span is not None
    assert done.span.last == newest
    replayed(case.run(), done.span.first, newest)
    run_both(topics, rounds, case, plain, count=2, stop_at=newest + 1)
    rescaled(case, 2)
    run_both(topics, rounds, case, plain, count=1)
    assert case.written() == plain.written()
    clean_audit(case.config, case.name)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_what_is_not_the_same_state_never_becomes_current(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    topics, rounds = bench.topics("update"), bench.input()
    case = bench.case("update", topics)
    run_both(topics, rounds, case)
    current, run = case.home.current(), Repartition.run

    def one_partition_twice(self: Repartition, partitions: int) -> None:
        run(self, partitions)
        store, other = self._checkpoint / "state/0/0", self._checkpoint / "state/0/1"
        commit = json.loads((self._checkpoint / "commits/1").read_text().partition("\n")[2])
        names = [ids[0] for ids in commit["stateUniqueIds"]["0"]]
        for end in ("zip", "zip.crc"):
            shutil.copy(store / f"2_{names[0]}.{end}", other / f"2_{names[1]}.{end}")
        shutil.copytree(store / "SSTs", other / "SSTs", dirs_exist_ok=True)

    def a_torn_table(self: Repartition, partitions: int) -> None:
        run(self, partitions)
        for table in self._checkpoint.glob("state/0/*/SSTs/*.sst"):
            table.write_bytes(table.read_bytes()[:-1])

    for damage, reason in ((one_partition_twice, "Spark has made"), (a_torn_table, "is not whole")):
        monkeypatch.setattr(Repartition, "run", damage)
        with pytest.raises(ExactlyOnceError, match=reason):
            rescale(case.home, case.name, case.config, 4, spark=open_session("rescale"))
        assert case.home.current() == current
        assert len(list(case.home.lineages.iterdir())) == 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_rescale_that_is_killed_at_every_step_is_cleaned_up_by_its_repetition(bench: Bench) -> None:
    topics, rounds, case, plain = two_pipelines(bench, "windowed")
    run_both(topics, rounds, case, plain)
    original = case.home.current()
    assert original is not None
    steps = (*RESCALE_NAMES[:2], *RESTORE_NAMES[:2], RESCALE_NAMES[2], *RESTORE_NAMES[2:4])
    assert steps[-1] == "restore-switched"
    servers = ("--bootstrap-servers", case.config["bootstrap.servers"])
    words = ("rescale", case.name, *servers, "--json", "--state-partitions")
    for partitions, step in enumerate(steps, start=3):
        commands.run_apart(*words, str(partitions), code=-signal.SIGKILL, failpoints=step)
        current = case.home.current()
        assert current is not None
        assert (current.id == original.id) is (step != "restore-switched"), step
    done = commands.run_apart(*words, "4")
    assert "copying batch" in done.err
    body = done.body
    assert (body["state_partitions_before"], body["state_partitions"]) == (partitions, 4)
    assert body["abandoned"] == original.id
    assert {directory.name for directory in case.home.lineages.iterdir()} == {original.id, body["lineage"]}
    run_both(topics, rounds, case, plain)
    assert case.written() == plain.written()
    clean_audit(case.config, case.name)
