"""The home of a pipeline goes to another file system and back, is killed on the way at each step, and goes on."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.backfill import workspace as backfills
from airflow_provider_exactlyonce.backfill.request import BackfillRequest
from airflow_provider_exactlyonce.checkpoint.home_copy import HomeCopied, copy_home
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import json_store, moving, upgrade_plan
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.upgrade_plan import Options, Plan, UpgradeStep
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, HomeMovedError, RefusedError
from airflow_provider_exactlyonce.failpoints import HOME_COPY_NAMES
from airflow_provider_exactlyonce.failpoints import VARIABLE as FAILPOINTS
from airflow_provider_exactlyonce.storage.opening import hadoop_url, store_of
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions
from tests import azurite, commands, object_stores
from tests.hadoop_cluster import HadoopCluster
from tests.integration.streaming.harness import World, check_counts, read_committed, rows_by_commit
from tests.processes import is_stopped
from tests.unit.checkpoint import crafted
from tests.waiting import HANG_SECONDS, eventually

pytestmark = pytest.mark.filterwarnings("default")

METADATA = "state/0/_metadata/v2/0"
SCHEMAS = "/state/0/_stateSchema/default/0_a"
#: What a home has of its own wherever it is.
OF_ITS_OWN = ("home.json", "control/", "current.lock", "backfills/turn")


@dataclass
class Pipeline:
    """A pipeline whose runs claim, and whose batches were crafted."""

    config: Mapping[str, str]
    name: str
    runs: int = 0

    @contextmanager
    def run(self, home: Home) -> Iterator[Run]:
        """Start a run, as a driver does before its first batch."""
        self.runs += 1
        options = RunOptions(
            config=dict(self.config),
            token=f"run-{self.runs}",
            version="v",
            transaction_timeout_milliseconds=60_000,
        )
        run = Run(home, self.name, options)
        try:
            run.start()
            yield run
        finally:
            run.close()

    def copy(self, source: Home, target: Home) -> HomeCopied:
        return copy_home(source, target, self.config)

    def command(self, *words: str, failpoints: str = "", largest_file: int | None = None, code: int = 0) -> Any:
        """Run a command in a process of its own; returns its JSON, or what it says when it refuses."""
        limited = [] if largest_file is None else ["prlimit", f"--fsize={largest_file}"]
        given = {**os.environ, "EXACTLYONCE_KAFKA": json.dumps(dict(self.config))}
        said = commands.run_apart(*words, "--json", code=code, failpoints=failpoints, environment=given, under=limited)
        return said.body if code == 0 else said.err


@pytest.fixture
def pipeline(kafka_config: Mapping[str, str]) -> Pipeline:
    return Pipeline(kafka_config, f"p-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def bucket(moto: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in object_stores.environment(moto).items():
        monkeypatch.setenv(name, value)
    return f"s3://bucket/{uuid.uuid4()}"


@pytest.fixture
def container(azure: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in azurite.environment(azure).items():
        monkeypatch.setenv(name, value)
    return f"abfss://bucket/{uuid.uuid4()}"


@pytest.fixture
def google_bucket(gcs: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in object_stores.gcs_environment(gcs).items():
        monkeypatch.setenv(name, value)
    return f"gs://bucket/{uuid.uuid4()}"


@pytest.fixture(params=["bucket", "container", "google_bucket", "hadoop"])
def remote(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return where a home can be that is on no file system of this machine; it is reached by the environment."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = request.getfixturevalue(request.param)
    return f"{place.hdfs}/{uuid.uuid4()}" if isinstance(place, HadoopCluster) else str(place)


def lineage_of(home: Home) -> str:
    current = home.current()
    assert current is not None
    return current.id


def filled(pipeline: Pipeline, home: Home) -> str:
    """Let a first run claim the pipeline, and leave a checkpoint and a savepoint; returns the savepoint's id."""
    with pipeline.run(home) as run:
        run.home.note_commit(run.lineage.id, 0)
    lineage = lineage_of(home)
    place = home.checkpoint(lineage)
    shutil.rmtree(place)
    checkpoint = crafted.checkpoint(place)
    savepoint = Savepoints(home.savepoints).take(checkpoint, 2, crafted.record(2), None)
    (place / METADATA).parent.mkdir(parents=True)
    (place / METADATA).write_text(
        f'v2\n{{"stateStoreInfo":[{{"stateSchemaFilePaths":["{hadoop_url(place)}{SCHEMAS}"]}}]}}'
    )
    (place / METADATA).with_name(".0.crc").write_bytes(b"crc\x00\xff")
    json_store.write(home.commands / "stop.json", {"token": "t", "reason": "asked"})
    json_store.write(home.path / "release.json", {"schema": 1, "version": "v", "since": 1})
    return savepoint.id


def contents(home: Home) -> dict[str, bytes]:
    """Return what is in a home, but for what it has of its own."""
    return {
        name: (home.path / name).read_bytes()
        for name in store_of(home.path).files(home.path)
        if not name.startswith(OF_ITS_OWN) and not name.endswith((".lock", "current", "/v2/.0.crc"))
    }


def named_schemas(home: Home) -> str:
    text = (home.checkpoint(lineage_of(home)) / METADATA).read_text()
    return str(json.loads(text.partition("\n")[2])["stateStoreInfo"][0]["stateSchemaFilePaths"][0])


def without_paths(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if not name.startswith("lineages") or METADATA not in name}


@pytest.mark.slow
def test_a_home_goes_to_a_bucket_and_back_and_its_pipeline_goes_on(
    pipeline: Pipeline, tmp_path: Path, bucket: str
) -> None:
    local, remote, back = Home(tmp_path / "old"), Home(bucket), Home(tmp_path / "back")
    saved = filled(pipeline, local)
    before, lineage = contents(local), lineage_of(local)
    copied = pipeline.copy(local, remote)
    assert (copied.run, copied.changed, copied.copied) == (1, True, copied.files)
    names = store_of(remote.path).files(remote.path)
    assert not [name for name in names if name.startswith("control/") and "status" not in name]
    shutil.rmtree(local.lineages)  # nothing of the new home is in the old one
    shutil.rmtree(local.savepoints)

    assert without_paths(contents(remote)) == without_paths(before)
    assert named_schemas(remote) == f"{hadoop_url(remote.checkpoint(lineage))}{SCHEMAS}"
    assert Savepoints(remote.savepoints).verify(saved) == []
    with pytest.raises(HomeMovedError, match=f"was moved to {bucket}: name that home"), pipeline.run(local):
        pass
    assert not pipeline.copy(local, remote).changed
    with pytest.raises(HomeMovedError, match=f"was moved to {bucket}"):
        pipeline.copy(local, back)

    with pipeline.run(remote) as run:
        assert (run.number, run.lineage.id) == (2, lineage)
        assert run.tail.claim is not None
        assert run.tail.claim.home_path == str(remote.path)
    before = contents(remote)
    pipeline.copy(remote, back)
    assert without_paths(contents(back)) == without_paths(before)
    assert named_schemas(back) == f"{hadoop_url(back.checkpoint(lineage))}{SCHEMAS}"
    with pytest.raises(HomeMovedError, match=f"was moved to {back.path}"), pipeline.run(remote):
        pass
    with pipeline.run(back) as run:
        assert (run.number, run.lineage.id) == (3, lineage)


def test_a_home_that_is_moved_twice_before_a_start_is_accepted_and_a_copy_by_hand_is_not(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    first, second, third = (Home(tmp_path / name) for name in ("first", "second", "third"))
    filled(pipeline, first)
    pipeline.copy(first, second)
    pipeline.copy(second, third)
    shutil.copytree(third.path, tmp_path / "by hand")
    with (
        pytest.raises(RefusedError, match="is a copy: run 1 of pipeline"),
        pipeline.run(Home(tmp_path / "by hand")),
    ):
        pass
    with pipeline.run(third) as run:
        assert run.number == 2


def test_each_command_on_a_home_that_was_moved_names_the_new_one(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXACTLYONCE_KAFKA", json.dumps(dict(pipeline.config)))
    old, new = Home(tmp_path / "old"), Home(tmp_path / "new")
    saved = filled(pipeline, old)
    pipeline.copy(old, new)
    name, at = pipeline.name, ("--home", str(old.path))
    for words in (
        ("savepoint", name),
        ("savepoint", "pin", name, saved, *at),
        ("restore", name, *at),
        ("rescale", name, "--state-partitions", "3"),
        ("stop", name),
        ("backfill", name, "--commits", "1..2", "--application", "job.py"),
    ):
        said = commands.run(*words, code=HomeMovedError.exit_code).err
        assert f"HomeMovedError: {old.path} was moved to {new.path}: name that home" in said
    assert f"was moved to {new.path}" in commands.run("status", name, "--json").body["next"]
    before = contents(old)
    found = commands.run("doctor", name, "--fix", "--json", *at, code=1).body
    assert "home-moved" in {finding["name"] for finding in found["findings"]}
    assert contents(old) == before, "nothing is repaired in a home that was moved"
    assert moving.sealed(old.path) is not None


def test_a_copy_that_is_killed_at_each_step_is_repeated_and_ends_the_same(pipeline: Pipeline, tmp_path: Path) -> None:
    old, new = Home(tmp_path / "old"), Home(tmp_path / "new")
    filled(pipeline, old)
    words = ("home", "copy", str(old.path), str(new.path))
    for step in HOME_COPY_NAMES:
        sealed, finished = step in ("copy-sealed", "copy-finished"), step == "copy-finished"
        pipeline.command(*words, failpoints=step, code=-signal.SIGKILL)
        assert (moving.sealed(old.path) is not None) is sealed, step
        if finished:
            assert new.pipeline() == pipeline.name
        else:
            with pytest.raises(HomeMovedError, match="that is not finished"), pipeline.run(new):
                pass
        if sealed:
            with pytest.raises(HomeMovedError, match=f"was moved to {new.path}"), pipeline.run(old):
                pass
            continue
        with pipeline.run(old) as run:  # it is the home still, and changes
            lineage, done = run.lineage.id, run.number
        place = old.checkpoint(lineage)
        (place / f"offsets/{done}").rename(place / f"offsets/{done + 1}")
        (place / f"of-{step}").write_text(step)
        (place / "metadata").write_text(json.dumps({"id": lineage, "step": step}))
    answer = pipeline.command(*words)
    assert (answer["changed"], answer["last_run"]) == (False, done)
    assert without_paths(contents(new)) == without_paths(contents(old))
    with pipeline.run(new) as run:
        assert (run.number, run.lineage.id) == (done + 1, lineage)


def test_a_copy_for_which_there_is_no_room_names_the_file_and_goes_on_when_there_is(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    old, new = Home(tmp_path / "old"), Home(tmp_path / "new")
    filled(pipeline, old)
    lineage = old.current()
    assert lineage is not None
    large = old.checkpoint(lineage.id) / "state/0/0/large"
    large.write_bytes(bytes(100_000))
    words = ("home", "copy", str(old.path), str(new.path))
    said = pipeline.command(*words, largest_file=50_000, code=1)
    (line,) = said.splitlines()
    copied = new.path / large.relative_to(old.path)
    assert f"{large} could not be copied to {copied}: [Errno {errno.EFBIG}]" in line
    assert moving.sealed(old.path) is None
    assert pipeline.command(*words)["changed"] is True
    assert without_paths(contents(new)) == without_paths(contents(old))


@pytest.mark.slow
@pytest.mark.parametrize("step", HOME_COPY_NAMES)
@pytest.mark.parametrize("way", ["there", "back", "across"])
def test_a_copy_to_or_from_another_file_system_that_is_killed_is_repeated_and_ends_the_same(
    pipeline: Pipeline, tmp_path: Path, remote: str, bucket: str, way: str, step: str
) -> None:
    first, there = Home(tmp_path / "old"), Home(remote)
    filled(pipeline, first)
    old, new = first, there
    if way == "back":
        old, new = there, Home(tmp_path / "new")
    elif way == "across":
        old = Home(f"{bucket}-old")
    if old is not first:
        pipeline.copy(first, old)
    words = ("home", "copy", str(old), str(new))
    pipeline.command(*words, failpoints=step, code=-signal.SIGKILL)
    answer = pipeline.command(*words)
    assert answer["changed"] is (step != "copy-finished")
    assert without_paths(contents(new)) == without_paths(contents(old))
    with pytest.raises(HomeMovedError), pipeline.run(old):
        pass
    with pipeline.run(new) as run:
        assert run.number == 2


@pytest.mark.slow
@pytest.mark.parametrize("step", ["copy-during", "copy-flushed"])
def test_a_copy_that_was_frozen_writes_nothing_into_the_home_that_another_call_has_made(
    pipeline: Pipeline, tmp_path: Path, remote: str, step: str
) -> None:
    """There nothing tells it that it has lost its hold, and another call has ended and let go since."""
    old, new = Home(remote), Home(tmp_path / "new")
    filled(pipeline, Home(tmp_path / "first"))
    pipeline.copy(Home(tmp_path / "first"), old)
    frozen = subprocess.Popen(
        [*commands.PROGRAM, "home", "copy", remote, str(new.path)],
        env={
            **os.environ,
            "EXACTLYONCE_KAFKA": json.dumps(dict(pipeline.config)),
            FAILPOINTS: f"{step}:signal=STOP",
        },
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        eventually(lambda: is_stopped(frozen.pid), "the copy is frozen")
        assert pipeline.copy(old, new).changed
        with pipeline.run(new) as run:
            new.remember(replace(run.lineage, base_commit=77))
        after = contents(new)
        os.killpg(frozen.pid, signal.SIGCONT)
        _, said = frozen.communicate(timeout=HANG_SECONDS)
    finally:
        if frozen.poll() is None:
            os.killpg(frozen.pid, signal.SIGKILL)
            frozen.communicate()
    assert frozen.returncode == AlreadyRunningError.exit_code, said
    assert contents(new) == after


def test_what_speaks_against_a_copy_leaves_both_as_they_are(pipeline: Pipeline, tmp_path: Path, bucket: str) -> None:
    old, new = Home(tmp_path / "old"), Home(bucket)
    filled(pipeline, old)
    with leases.holding(old.lease, pipeline.name, "driver"), pytest.raises(AlreadyRunningError, match="runs: pid"):
        pipeline.copy(old, new)
    with (
        leases.alone(old.backfills / "turn", pipeline.name, note="backfill 5"),
        pytest.raises(AlreadyRunningError, match=r"the turn of the backfills of p-.*: backfill 5. End that first"),
    ):
        pipeline.copy(old, new)
    plan = Plan(id="1", pipeline=pipeline.name, step=UpgradeStep.WATCH, options=Options(), application="job.py")
    upgrade_plan.write(old, plan, before=upgrade_plan.read(old))
    with pytest.raises(RefusedError, match=r"an upgrade to job.py of pipeline .* is under way"):
        pipeline.copy(old, new)
    upgrade_plan.write(old, replace(plan, step=UpgradeStep.DONE), before=upgrade_plan.read(old))
    staged = old.path / "sinks/log/staging/1/a.arrows"
    staged.parent.mkdir(parents=True)
    staged.touch()
    with pytest.raises(RefusedError, match=r"stages rows in .*/sinks, which it can only on a mounted file system"):
        pipeline.copy(old, new)
    shutil.rmtree(old.path / "sinks")
    stale = Home(tmp_path / "stale")
    shutil.copytree(old.path, stale.path)
    with pytest.raises(RefusedError, match="is a copy: run 1 of pipeline"):
        pipeline.copy(stale, new)
    assert store_of(new.path).files(new.path) == []
    assert moving.sealed(old.path) is None


def test_a_home_that_was_sealed_is_no_source_once_its_pipeline_has_gone_on(pipeline: Pipeline, tmp_path: Path) -> None:
    old, new = Home(tmp_path / "old"), Home(tmp_path / "new")
    filled(pipeline, old)
    pipeline.copy(old, new)
    with pipeline.run(new):
        pass
    shutil.rmtree(new.path)
    with pytest.raises(RefusedError, match=f"was sealed after run 1, and run 2 has begun since from {new.path}"):
        pipeline.copy(old, new)
    assert store_of(new.path).files(new.path) == []
    assert Checkpoint(old.checkpoint(next(iter(store_of(old.lineages).names(old.lineages))))).newest_commit() == 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_pipeline_is_moved_to_another_file_system_and_back_and_writes_each_row_once(
    kafka_config: Mapping[str, str],
    make_topic: Callable[..., str],
    tmp_path: Path,
    remote: str,
) -> None:
    """It is killed at each home; what it has left behind is taken away, so that nothing is read from there."""
    source, sink = make_topic(partitions=3), make_topic(partitions=4)
    world = World(kafka_config, f"p-{source}", source, sink, tmp_path / "old")
    pipeline, back = Pipeline(kafka_config, world.pipeline), str(tmp_path / "back")

    def drive(home: str, code: int = 0, failpoints: str | None = None) -> None:
        driver = world.start(home=home, failpoints=failpoints, own_jvm=True)
        assert driver.wait() == code, driver.output()[-6000:]

    try:
        world.send(1500)
        drive(str(world.home), -signal.SIGKILL, "after-commit:run=1:batch=1")
        saved = pipeline.command("savepoint", world.pipeline)
        drive(str(world.home), -signal.SIGKILL, "after-end-transaction:run=2:batch=2")
        for old, new in ((str(world.home), remote), (remote, back)):
            moved = pipeline.command("home", "copy", old, new)
            assert (moved["changed"], moved["copied_files"]) == (True, moved["files"])
            drive(old, HomeMovedError.exit_code)
            for folder in ("lineages", "savepoints"):
                store_of(Home(old).path).remove(Home(old).path / folder)
            world.send(400)
            drive(new, -signal.SIGKILL, f"after-end-transaction:run={moved['last_run'] + 1}")
            check_counts(world, complete=False)
            drive(new)
            check_counts(world)
        restored = pipeline.command("restore", world.pipeline, "--savepoint", saved["id"])
        assert restored["savepoint_commit"] == saved["commit"]
        assert restored["replayed_commits"] == [saved["commit"] + 1, world.commits()]
        world.send(300)
        drive(back)
        check_counts(world)
        doctor = pipeline.command("doctor", world.pipeline)
        assert not [finding for finding in doctor["findings"] if finding["severity"] == "error"], doctor
    finally:
        world.end()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_backfill_that_was_killed_goes_on_where_its_pipeline_was_moved_to(
    kafka_config: Mapping[str, str],
    make_topic: Callable[..., str],
    tmp_path: Path,
    bucket: str,
) -> None:
    source, sink, output = make_topic(partitions=3), make_topic(partitions=4), make_topic(partitions=2)
    world = World(kafka_config, f"p-{source}", source, sink, tmp_path / "old")
    pipeline, old, new = Pipeline(kafka_config, world.pipeline), Home(world.home), Home(bucket)

    def drive(home: Home, *arguments: str, code: int = 0, failpoints: str | None = None) -> None:
        driver = world.start(*arguments, home=str(home), failpoints=failpoints, own_jvm=True)
        assert driver.wait() == code, driver.output()[-6000:]

    try:
        world.send(2000)
        drive(old)
        request = BackfillRequest(commits=(2, 4), output=f"topic={output}")
        begun = backfills.make(old, world.pipeline, request)
        drive(begun, "--backfill", code=-signal.SIGKILL, failpoints="backfill-step:batch=2")
        pipeline.copy(old, new)
        drive(begun, "--backfill", code=HomeMovedError.exit_code)
        store_of(old.path).remove(old.lineages)
        store_of(begun.path).remove(begun.lineages)
        moved = Home(new.backfills / request.name)
        assert backfills.result_of(moved) is None
        drive(moved, "--backfill")
        result = backfills.result_of(moved)
        assert result is not None
        delivered = rows_by_commit(world.config, sink, world.ledger()[0])
        expected = Counter(record.value for number, record in delivered if 2 <= number <= 4)
        assert Counter(record.value for record in read_committed(world.config, output)) == expected
        assert result["rows"] == expected.total() > 0
    finally:
        world.end()
