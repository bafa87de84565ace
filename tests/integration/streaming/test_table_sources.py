"""Pipelines that read tables: killed, restarted, restored, and stopped where what they would read is not exact."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.control import status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.doctor.examine import examine
from airflow_provider_exactlyonce.doctor.findings import Severity
from airflow_provider_exactlyonce.exceptions import BadRecordError
from airflow_provider_exactlyonce.ledger import gate
from airflow_provider_exactlyonce.ledger.gate_target import GateTarget
from airflow_provider_exactlyonce.streaming import DeltaSource, KafkaSink
from airflow_provider_exactlyonce.streaming import pipeline as pipeline_of
from airflow_provider_exactlyonce.streaming.analysis.planned_state import stateful_operators
from airflow_provider_exactlyonce.streaming.job.guarantees import examine as examine_guarantee
from airflow_provider_exactlyonce.testing.job import run_job
from tests import azurite, commands, object_stores
from tests.integration.streaming.harness import CONF, JOBS, World
from tests.integration.streaming.read_tables import (
    DELTA,
    ICEBERG,
    IN_A_BUCKET,
    KINDS,
    ON_AZURE,
    ReadDelta,
    ReadDeltaInABucket,
    ReadDeltaOnAzure,
    ReadIceberg,
    ReadTable,
    TablePipeline,
)

REFUSED, BAD_DATA, DATA_LOST = 64, 67, 72


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with object_stores.moto() as address:
        yield address


@pytest.fixture(scope="module")
def azure() -> Iterator[str]:
    with azurite.azurite() as address:
        yield address


@pytest.fixture(params=KINDS)
def pipeline(
    request: pytest.FixtureRequest, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> TablePipeline:
    """Give a pipeline that reads a table, of which it has read nothing; commands know the table's connection, too."""
    folder = tmp_path / "lake"
    table: ReadTable
    if request.param == IN_A_BUCKET:
        table = ReadDeltaInABucket(folder, request.getfixturevalue("moto"))
    elif request.param == ON_AZURE:
        table = ReadDeltaOnAzure(folder, request.getfixturevalue("azure"))
    else:
        table = ReadDelta(folder) if request.param == DELTA else ReadIceberg(folder)
    for name, value in table.environment.items():
        monkeypatch.setenv(name, value)
    return TablePipeline(world, table)


def delta(pipeline: TablePipeline) -> ReadDelta:
    assert isinstance(pipeline.table, ReadDelta)
    return pipeline.table


def slow(*kinds: str) -> list[Any]:
    return [pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]


only_delta = pytest.mark.parametrize("pipeline", [DELTA], indirect=True)


@pytest.mark.parametrize("pipeline", [DELTA, *slow(ICEBERG, IN_A_BUCKET, ON_AZURE)], indirect=True)
def test_what_is_added_is_counted_once_and_a_driver_that_died_after_its_commit_repeats_nothing(
    pipeline: TablePipeline,
) -> None:
    pipeline.table.append(3)
    driver = pipeline.start("after-end-transaction:batch=0")
    assert driver.wait() == -signal.SIGKILL, driver.output()[-4000:]
    pipeline.table.append()
    pipeline.finish()
    pipeline.check()
    seen = status.read(Home(pipeline.world.home).status)
    assert seen is not None
    assert (seen.lag, seen.records) == (
        0,
        pipeline.table.sent - sum(commit.records or 0 for commit in pipeline.world.ledger()[0][:1]),
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_driver_that_is_killed_at_every_step_in_turn_loses_and_doubles_nothing(pipeline: TablePipeline) -> None:
    pipeline.table.append(8)
    steps = (
        "after-claim:run=1",
        "after-begin:run=2:batch=0",
        "during-send:run=3:batch=0",
        "after-pre-commit:run=4:batch=1",
        "after-end-transaction:run=5:batch=1",
        "after-commit:run=6:batch=2",
    )
    for step in steps:
        driver = pipeline.start(step, own_jvm=True)
        assert driver.wait() == -signal.SIGKILL, f"{step}: {driver.output()[-4000:]}"
        pipeline.table.append()
        pipeline.check(complete=False)
    pipeline.finish()
    pipeline.check()
    assert [run.run for run in pipeline.world.ledger()[1]] == list(range(1, 8))


@pytest.mark.slow
def test_a_restored_pipeline_replays_the_recorded_versions_and_goes_on(pipeline: TablePipeline) -> None:
    pipeline.table.append(3)
    pipeline.finish()
    commands.run("savepoint", pipeline.world.pipeline, *pipeline.world.at_home)
    saved = pipeline.world.commits()
    pipeline.table.append(4)
    pipeline.finish()
    before = pipeline.world.commits()
    assert before > saved + 1
    commands.run("restore", pipeline.world.pipeline, "--commit", str(saved), *pipeline.world.at_home)
    pipeline.table.append()
    driver = pipeline.start("after-replayed:run=3", own_jvm=True)
    assert driver.wait() == -signal.SIGKILL, driver.output()[-4000:]
    pipeline.finish()
    assert pipeline.world.commits() == before + 1
    pipeline.check()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_state_is_rescaled_and_the_job_upgraded_between_two_versions(pipeline: TablePipeline, tmp_path: Path) -> None:
    pipeline.table.append(3)
    pipeline.finish()
    pipeline.command("rescale", "--state-partitions", "3")
    pipeline.table.append(4)
    driver = pipeline.start("after-end-transaction:run=2", own_jvm=True)
    assert driver.wait() == -signal.SIGKILL, driver.output()[-4000:]
    second = tmp_path / "second.py"
    second.write_text(f"{(JOBS / pipeline.world.job).read_text()}# another version\n")
    conf = [part for pair in CONF.items() for part in ("--conf", "=".join(pair))]
    pipeline.command("upgrade", str(second), "--stable-after", "1", "--master", "local[2]", *conf)
    pipeline.table.append()
    pipeline.world.job = str(second)
    pipeline.finish()
    pipeline.check()
    versions = [run.version for run in pipeline.world.ledger()[1]]
    assert versions[0] == versions[1] != versions[2] == versions[-1]


@pytest.mark.slow
def test_a_table_whose_history_has_expired_is_read_whole_and_then_what_is_added(pipeline: TablePipeline) -> None:
    pipeline.table.append(4)
    version = pipeline.table.forget()
    refused = pipeline.start()
    assert refused.wait() == REFUSED, refused.output()[-4000:]
    assert "initial_snapshot=True" in refused.output()
    pipeline.environment["TEST_STARTING_VERSION"] = str(version)
    pipeline.environment["TEST_FILES"] = "1"
    for step in ("during-send:run=1:batch=0", "after-end-transaction:run=2:batch=1"):
        driver = pipeline.start(step)
        assert driver.wait() == -signal.SIGKILL, driver.output()[-4000:]
        pipeline.table.append()
        pipeline.check(complete=False)
    commands.run("savepoint", pipeline.world.pipeline, *pipeline.world.at_home)
    saved = pipeline.world.commits()
    pipeline.finish()
    before = pipeline.world.commits()
    commands.run("restore", pipeline.world.pipeline, "--commit", str(saved), *pipeline.world.at_home)
    pipeline.table.append()
    del pipeline.environment["TEST_FILES"], pipeline.environment["TEST_STARTING_VERSION"]  # the ledger knows
    pipeline.finish()
    assert pipeline.world.commits() > before > saved
    pipeline.check()


@pytest.mark.slow
@only_delta
def test_a_commit_that_another_sink_has_already_is_made_of_the_same_files(
    pipeline: TablePipeline, tmp_path: Path
) -> None:
    pipeline.environment["TEST_OUT"] = str(tmp_path / "out")
    pipeline.table.append(3)
    driver = pipeline.start("after-sink-commit:batch=1")
    assert driver.wait() == -signal.SIGKILL, driver.output()[-4000:]
    home = Home(pipeline.world.home)
    lineage = home.current()
    assert lineage is not None
    (home.checkpoint(lineage.id) / "offsets" / "1").unlink()
    pipeline.table.append()  # which a batch that is planned anew would read, too
    last = pipeline.finish()
    assert "is planned as run 1 has committed it" in last.output()
    pipeline.check()
    rows = DeltaTable(tmp_path / "out").to_pyarrow_table()
    assert rows.num_rows == sum(commit.rows for commit in pipeline.world.ledger()[0])


@pytest.mark.slow
def test_a_version_that_takes_rows_out_stops_the_pipeline_behind_all_before_it_or_is_skipped(
    pipeline: TablePipeline,
) -> None:
    pipeline.table.append(2)
    pipeline.table.delete("id = 3")
    pipeline.table.append()
    stopped = pipeline.start()
    assert stopped.wait() == BAD_DATA, stopped.output()[-4000:]
    assert f"of table {pipeline.table.name}" in stopped.output()
    assert 'on_rewrite="skip"' in stopped.output()
    read = sum(commit.records or 0 for commit in pipeline.world.ledger()[0])
    assert read == 2 * pipeline.table.sent // 3
    pipeline.environment["TEST_ON_REWRITE"] = "skip"
    pipeline.finish()
    pipeline.check()


@pytest.mark.slow
@only_delta
def test_what_was_compacted_is_read_and_replayed_and_what_was_vacuumed_stops_by_name(pipeline: TablePipeline) -> None:
    table, world = delta(pipeline), pipeline.world
    table.append(2)
    pipeline.finish()
    commands.run("savepoint", world.pipeline, *world.at_home)
    saved = world.commits()
    table.append(2)
    table.compact()
    pipeline.finish()
    pipeline.check()
    commands.run("restore", world.pipeline, "--commit", str(saved), *world.at_home)
    pipeline.finish()
    pipeline.check()
    table.append(2)
    table.compact()
    table.vacuum()
    lost = pipeline.start()
    assert lost.wait() == DATA_LOST, lost.output()[-4000:]
    assert f"of table {table.name} is gone: it was compacted and vacuumed before it was read" in lost.output()
    refused = commands.run("restore", world.pipeline, "--commit", str(saved), *world.at_home, code=REFUSED)
    assert "is gone: it was compacted and vacuumed" in refused.err


@pytest.mark.slow
@only_delta
def test_a_table_that_was_made_anew_is_refused(pipeline: TablePipeline) -> None:
    pipeline.table.append(2)
    pipeline.finish()
    shutil.rmtree(pipeline.table.place)
    pipeline.table.append(3)
    refused = pipeline.start()
    assert refused.wait() == REFUSED, refused.output()[-4000:]
    assert f"table {pipeline.table.name}" in refused.output()
    shutil.rmtree(pipeline.table.place)
    gone = pipeline.start()
    assert gone.wait() == REFUSED, gone.output()[-4000:]
    assert f"table {pipeline.table.name} does not exist" in gone.output()


@pytest.mark.slow
@only_delta
def test_rows_that_do_not_fit_and_columns_that_are_others_are_refused(pipeline: TablePipeline) -> None:
    pipeline.table.append()
    pipeline.finish()
    without_key = pa.table({"id": [900], "k": pa.array([None], pa.string()), "part": pa.array([0], pa.int32())})
    write_deltalake(pipeline.table.place, without_key, mode="append", partition_by=["part"], schema_mode="merge")
    stopped = pipeline.start()
    assert stopped.wait() == BAD_DATA, stopped.output()[-4000:]
    assert "the required column 'k' has nulls" in stopped.output()
    pipeline.check(complete=False)
    other = pa.table({"id": ["x"], "k": ["x"], "part": pa.array([0], pa.int32())})
    write_deltalake(pipeline.table.place, other, mode="overwrite", partition_by=["part"], schema_mode="overwrite")
    refused = pipeline.start()
    assert refused.wait() == REFUSED, refused.output()[-4000:]
    assert "its column 'id' is string, and long is declared" in refused.output()


@pytest.mark.slow
def test_gates_doctor_and_status_tell_of_a_table(pipeline: TablePipeline) -> None:
    world, now = pipeline.world, GateTarget(up_to_now=True)
    pipeline.table.append(2)
    pipeline.finish()
    assert gate.check(world.config, world.pipeline, now).open
    pipeline.table.append()
    missing = gate.check(world.config, world.pipeline, now).missing
    assert f"{pipeline.table.name}-0: committed up to " in missing
    findings = examine(world.pipeline, world.config, None).findings
    assert [finding for finding in findings if finding.severity is Severity.ERROR] == []
    told = commands.run("status", world.pipeline, "--json", *world.servers).body
    newest = world.ledger()[0][-1]
    assert told["source"] == {pipeline.table.name: {"0": newest.source[pipeline.table.name][0][1]}}


def test_a_stand_in_has_the_columns_of_the_stream_and_is_planned_without_the_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = pa.table({"id": [1], "k": ["a"], "tags": [["x"]]})
    write_deltalake(tmp_path / "orders", rows)
    source = DeltaSource(str(tmp_path / "orders"), "id BIGINT NOT NULL, k STRING, tags ARRAY<STRING> NOT NULL")
    stand_in, stream = source.stand_in(spark), source.read(spark, {})
    assert stand_in.schema == stream.schema
    shutil.rmtree(tmp_path / "orders")
    keyed = [frame.groupBy("id").count() for frame in (stand_in, stream)]
    planned, real = (stateful_operators(frame, "update", {"spark.sql.shuffle.partitions": "1"}) for frame in keyed)
    assert planned == real != ()


def test_a_table_gives_exactly_once_and_a_test_gives_rows_for_it(spark: SparkSession) -> None:
    source = DeltaSource("/none/such", "id BIGINT NOT NULL, k STRING")  # neither planning nor a test looks at it
    counted = pipeline_of(name="p", source=source, sink=KafkaSink("out", key="k"), output_mode="update")(
        lambda rows: rows.groupBy("k").agg(F.sum("id").alias("total"))
    )
    guarantee = examine_guarantee(counted, counted.planned(spark), (), {})
    assert guarantee.gives == "exactly_once"
    assert (guarantee.links[0].name, guarantee.links[0].replayable) == ("delta:/none/such", True)
    first, second = run_job(counted, [[{"id": 1, "k": "a"}, {"id": 2, "k": "a"}], [{"id": 5, "k": "a"}]], spark)
    assert [batch.values for batch in (first, second)] == [[{"k": "a", "total": 3}], [{"k": "a", "total": 8}]]
    with pytest.raises(BadRecordError, match="the required field id is missing"):
        run_job(counted, [[{"k": "a"}]], spark)
