"""A pipeline whose whole home is in a bucket or on HDFS: it runs exactly once, and each command works on it."""

from __future__ import annotations

import re
import signal
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.checkpoint import integrity, lineages
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, RefusedError
from airflow_provider_exactlyonce.failpoints import RESCALE_NAMES, RESTORE_NAMES, SAVEPOINT_NAMES
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.storage.opening import place_of, store_of
from airflow_provider_exactlyonce.storage.s3 import S3Store
from airflow_provider_exactlyonce.storage.store import HeldError
from tests import azurite, class_archives, commands, object_stores
from tests.hadoop_cluster import HadoopCluster
from tests.integration.streaming.conftest import world
from tests.integration.streaming.harness import CONF, JOBS, Driver, World, check_counts
from tests.object_stores import Faults
from tests.shared_jvm import SharedJvm
from tests.waiting import eventually

__all__ = ["world"]  # a fixture

pytestmark = [pytest.mark.timeout(3600), pytest.mark.filterwarnings("default")]


SECRETS = (object_stores.SECRET.encode(), azurite.KEY.encode())
SUBMISSION = ("--master", "local[2]", *(part for pair in CONF.items() for part in ("--conf", "=".join(pair))))


def source_records(commit: CommitRecord) -> int:
    return sum(end - start for ranges in commit.source.values() for start, end in ranges.values())


@dataclass(frozen=True)
class Server:
    """A server for homes.

    :param root: location of the directory that they are in
    :param environment: by which it is reached
    """

    root: str
    environment: Mapping[str, str]


class Pipeline:
    """A pipeline that has never run, with its home on a server.

    :ivar folder: where drivers leave their event logs
    """

    def __init__(self, world: World, server: Server, folder: Path) -> None:
        self.world = world
        self.url = f"{server.root}/{uuid.uuid4()}"
        self.folder = folder
        self._environment = {
            **object_stores.environment_of_commands(server.environment),
            **world.names,
        }
        self._commands = 0

    @property
    def home(self) -> Home:
        return Home(self.url)

    def start(
        self,
        *,
        until: str = "available",
        failpoints: str | None = None,
        conf: Mapping[str, str] | None = None,
        own_jvm: bool = True,
    ) -> Driver:
        """Start a driver; that no secret is where others could read it is checked at the end."""
        conf = {
            **(conf or {}),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file:{self.folder}",
        }
        driver = self.world.start(home=self.url, until=until, failpoints=failpoints, conf=conf, own_jvm=own_jvm)
        command = Path(f"/proc/{driver.process.pid}/cmdline").read_bytes()
        assert not any(secret in command for secret in SECRETS)
        return driver

    def await_all(self, driver: Driver) -> None:
        """Wait until a driver has committed all that was sent."""
        eventually(
            lambda: sum(map(source_records, self.world.ledger()[0])) == self.world.sent,
            lambda: driver.output()[-6000:],
        )

    def finish(self, driver: Driver) -> None:
        assert driver.wait() == 0, driver.output()[-6000:]

    def command(self, *words: str, failpoints: str = "", code: int = 0) -> Any:
        """Run a command on the pipeline in a process of its own; returns its JSON, or what it says when it refuses."""
        self._commands += 1
        given = (*words, "--home", self.url, *self.world.servers, "--json")
        said = commands.run_apart(*given, code=code, failpoints=failpoints, environment=self._environment)
        return said.body if code == 0 else said.err

    def check(self) -> None:
        """Judge what was written, record by record, and look for the secret."""
        check_counts(self.world)
        _, claims = self.world.ledger()
        assert {claim.home_path for claim in claims} == {str(self.home)} == {self.url.replace("a_connection@", "")}
        self._check_kept_output()
        events = b"".join(file.read_bytes() for file in self.folder.rglob("*") if file.is_file())
        if self.url.startswith("s3:"):
            assert b'"fs.s3a.secret.key":"*********(redacted)"' in events, "Spark hides what it has copied there"
        for read in (events, *(driver.log.read_bytes() for driver in self.world.drivers)):
            assert not any(secret in read for secret in SECRETS)

    def _check_kept_output(self) -> None:
        """Check that the end of what a driver has printed is in the home, too."""
        kept, store = self.home.kept_logs, store_of(self.home.path)
        assert kept is not None
        ends = [stored.content for name in store.names(kept) if (stored := store.read(kept / name)) is not None]
        whole = self.world.drivers[-1].log.read_bytes()
        assert any(b"run " in end and end in whole for end in ends), [end[-1000:] for end in ends]


def on_clusters(*servers: str) -> list[Any]:
    return [pytest.param(server, marks=pytest.mark.cluster) for server in servers]


@pytest.fixture(params=["moto", *on_clusters("seaweedfs", "gcs", "azure", "hadoop")])
def server(request: pytest.FixtureRequest) -> Server:
    running = request.getfixturevalue(request.param)
    if isinstance(running, HadoopCluster):
        return Server(f"{running.hdfs}/pipelines", {})
    if request.param == "gcs":
        return Server("gs://a_connection@bucket/pipelines", object_stores.gcs_environment(running))
    if request.param == "azure":
        return Server("abfss://a_connection@bucket/pipelines", azurite.environment(running))
    address = running.address if isinstance(running, Faults) else running
    return Server("s3://a_connection@bucket/pipelines", object_stores.environment(address))


@pytest.fixture
def counted(moto: str) -> Iterator[Faults]:
    """Give a way to the store on which requests are noted."""
    with object_stores.proxy(moto) as between:
        yield between


@pytest.fixture
def pipeline(
    server: Server,
    tmp_path: Path,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> Pipeline:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    events = tmp_path / "events"
    events.mkdir()
    return Pipeline(world, server, events)


def test_a_hold_that_was_lost_after_its_last_look_switches_nothing(moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store has no lock that keeps a successor out meanwhile."""
    for name, value in object_stores.environment(moto).items():
        monkeypatch.setenv(name, value)
    home = Home(f"s3://bucket/{uuid.uuid4()}")
    first = home.create("shop")

    def restore() -> None:
        with leases.holding(home.lease, "shop", "frozen") as hold, hold.sure():
            leases.acquire(home.lease, "shop", "driver", run=1)
            home.use(first.id)  # as a driver does once it has claimed the pipeline
            home.switch("another", hold.pointer)

    with pytest.raises(AlreadyRunningError, match="another process has taken pipeline shop over meanwhile"):
        restore()
    assert home.uses(first.id)


def test_where_there_is_no_lock_a_lease_keeps_others_out(moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in object_stores.environment(moto).items():
        monkeypatch.setenv(name, value)
    place = place_of(f"s3://bucket/{uuid.uuid4()}/backfill/turn")
    with leases.alone(place, "shop"), pytest.raises(HeldError, match="pipeline shop runs: pid"):
        leases.alone(place, "shop").__enter__()
    with leases.alone(place, "shop"):
        assert list(store_of(place).names(place.parent)) == ["turn.lease.json"]
    assert list(store_of(place).names(place.parent)) == []


def test_the_mark_that_hadoop_makes_of_a_directory_is_not_in_it(moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in object_stores.environment(moto).items():
        monkeypatch.setenv(name, value)
    key = f"{uuid.uuid4()}/state/0"
    folder = place_of(f"s3://bucket/{key}")
    store = store_of(folder)
    assert isinstance(store, S3Store)
    store.replace(folder / "1" / "2.zip", b"")
    store.system.call_s3("put_object", Bucket="bucket", Key=f"{key}/", Body=b"")
    assert list(store.names(folder)) == ["1"]
    assert list(store.files(folder)) == ["1/2.zip"]
    store.remove(folder)
    assert list(store.names(folder)) == list(store.names(folder.parent)) == list(store.files(folder)) == []


@pytest.fixture
def world_in_a_bucket(world: World, tmp_path: Path) -> Iterator[World]:
    """Give the pipeline a JVM for its drivers that has what Spark needs for a bucket."""
    world.jvm = SharedJvm(tmp_path / "jvm.log", class_archives.SHORT_LIVED)
    yield world
    world.end()
    world.jvm.end()


@pytest.mark.parametrize("server", ["seaweedfs"], indirect=True)
def test_a_pipeline_goes_on_in_a_bucket_where_its_driver_was_killed(
    pipeline: Pipeline, world_in_a_bucket: World
) -> None:
    world_in_a_bucket.send(900)
    killed = pipeline.start(failpoints="after-end-transaction:run=1:batch=1", own_jvm=False)
    assert killed.wait() == -signal.SIGKILL, killed.output()[-6000:]
    again = pipeline.start(own_jvm=False)
    pipeline.finish(again)
    pipeline.check()
    assert not killed.owns_jvm and not again.owns_jvm


@pytest.mark.slow
def test_a_driver_that_is_killed_and_started_again_writes_each_row_once(pipeline: Pipeline) -> None:
    world = pipeline.world
    world.send(1500)
    killed = pipeline.start(failpoints="after-end-transaction:run=1:batch=1")
    assert killed.wait() == -signal.SIGKILL, killed.output()[-6000:]
    again = pipeline.start(until="forever")
    eventually(lambda: world.commits() >= 4, lambda: again.output()[-6000:])
    taken = pipeline.command("savepoint", world.pipeline, "--label", "while it runs")
    assert taken["label"] == "while it runs"
    world.send(700)
    pipeline.await_all(again)
    stopped = pipeline.command("savepoint", world.pipeline, "--stop")
    pipeline.finish(again)
    assert stopped["commit"] > taken["commit"]
    pipeline.check()


def torn_commit(checkpoint: Checkpoint, newest: int) -> Path:
    return checkpoint.path / "commits" / str(newest)


def torn_state(checkpoint: Checkpoint, newest: int) -> Path:
    names = store_of(checkpoint.path).files(checkpoint.path / "state")
    state = re.compile(rf"0/\d+/{newest + 1}(_[^/.]+)?\.(zip|delta|changelog)")
    return checkpoint.path / "state" / next(name for name in names if state.fullmatch(name))


def torn_query_id(checkpoint: Checkpoint, _: int) -> Path:
    return checkpoint.path / "metadata"


@pytest.mark.slow
@pytest.mark.parametrize("server", ["moto", *on_clusters("hadoop")], indirect=True)
def test_files_that_are_torn_between_runs_are_made_again_and_each_row_is_written_once(pipeline: Pipeline) -> None:
    world = pipeline.world
    world.send(900)
    pipeline.finish(pipeline.start())
    for torn, done in (
        (torn_commit, "is run again"),
        (torn_state, "is run again"),
        (torn_query_id, "is written again"),
    ):
        lineage = pipeline.home.current()
        assert lineage is not None
        checkpoint = Checkpoint(pipeline.home.checkpoint(lineage.id))
        newest = checkpoint.newest_commit()
        assert newest is not None
        file, commits = torn(checkpoint, newest), world.commits()
        store = store_of(file)
        whole = store.read(file)
        assert whole is not None
        store.replace(file, whole.content[: len(whole.content) // 2])
        assert integrity.newest_whole(checkpoint)[0] != newest
        world.send(300)
        driver = pipeline.start()
        pipeline.finish(driver)
        assert done in driver.output(), driver.output()[-6000:]
        assert pipeline.home.current() == replace(lineage, last_commit=world.commits())
        assert world.commits() > commits
        assert integrity.newest_whole(checkpoint) == (checkpoint.newest_commit(), [])
        pipeline.check()


@pytest.mark.slow
@pytest.mark.parametrize("server", ["counted"], indirect=True)
def test_a_commit_asks_the_store_for_what_it_needs_and_no_more(pipeline: Pipeline, counted: Faults) -> None:
    """Requests are paid: docs/homes.md has these in its table."""
    pipeline.world.send(6000)
    pipeline.finish(pipeline.start(conf={"spark.sql.streaming.stateStore.maintenanceInterval": "1h"}))
    pipeline.check()
    commits = [at for at, request in enumerate(counted.requests) if re.search(r"PUT .*/commits/\d+$", request)]
    seen = Counter(map(kind_of, counted.requests[commits[3] : commits[-2]]))
    each = {what: count / (len(commits) - 5) for what, count in seen.items() if not re.search("control|state", what)}
    assert each == {
        "write progress": 1,
        "write checkpoint/offsets": 1,
        "list checkpoint/offsets": 1,
        "read checkpoint/offsets": 3,
        "write checkpoint/commits": 1,
        "list checkpoint/commits": 1,
        "read checkpoint/commits": 1,
    }
    # State is uploaded beside its commit or after it: how much falls between two commits depends on the machine.
    of_state = Counter(map(kind_of, counted.requests[commits[0] :]))
    assert of_state["write checkpoint/state"] <= 2 * 3 * len(commits), of_state
    assert of_state["list checkpoint/state"] <= 5 * len(commits), of_state  # 4, and some more on a busy machine


def kind_of(request: str) -> str:
    """Return what a request does, and where."""
    kind = "list" if "list-type" in request else "write" if request.startswith("PUT") else "read"
    place = re.search(r"checkpoint/\w+|control|savepoints|backfills|progress", request)
    return f"{kind} {place.group() if place else request}"


@pytest.mark.slow
@pytest.mark.parametrize("server", ["moto", *on_clusters("seaweedfs", "gcs", "azure", "hadoop")], indirect=True)
def test_a_savepoint_is_restored_exactly_and_every_command_works(pipeline: Pipeline) -> None:
    world = pipeline.world
    world.send(1500)
    pipeline.finish(pipeline.start())
    taken = pipeline.command("savepoint", world.pipeline)
    assert pipeline.command("savepoint", "verify", world.pipeline, taken["id"])["whole"]
    assert [saved["id"] for saved in pipeline.command("savepoint", "list", world.pipeline)] == [taken["id"]]
    world.send(900)
    pipeline.finish(pipeline.start())
    before = pipeline.home.current()
    assert before is not None

    restored = pipeline.command("restore", world.pipeline, "--savepoint", taken["id"])
    assert restored["lineage"] != before.id
    world.send(300)
    pipeline.finish(pipeline.start())
    pipeline.check()

    compared = pipeline.command("backfill", world.pipeline, "--commits", "2..3", *SUBMISSION)
    assert compared["clean"], compared

    shown = pipeline.command("state", "show", world.pipeline, "--limit", "50")
    assert sum(len(store["rows"]) for store in shown["stores"]) == 37
    assert pipeline.command("state", "show", world.pipeline, "--savepoint", taken["id"])["commit"] == taken["commit"]
    pipeline.command("status", world.pipeline)
    found = pipeline.command("doctor", world.pipeline)
    assert not [finding for finding in found["findings"] if finding["severity"] == "error"], found
    rescaled = pipeline.command("rescale", world.pipeline, "--state-partitions", "3")
    assert (rescaled["state_partitions_before"], rescaled["state_partitions"]) == (2, 3)
    world.send(300)
    pipeline.finish(pipeline.start())
    pipeline.check()
    assert commands.run_apart("audit", world.pipeline, *world.servers, "--json").body["rows"] > 0
    assert lineages.unfinished(pipeline.home.lineages) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "step", "step_back"),
    [
        ("moto", "check", "restore"),
        ("moto", "stop", "watch-old"),
        ("moto", "start", None),
        pytest.param("hadoop", "compare", "start-old", marks=pytest.mark.cluster),
        pytest.param("hadoop", "watch", None, marks=pytest.mark.cluster),
    ],
    indirect=["server"],
)
def test_an_upgrade_and_a_rollback_that_are_killed_go_on_and_write_each_row_once(
    pipeline: Pipeline, tmp_path: Path, step: str, step_back: str | None
) -> None:
    world = pipeline.world
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    text = (JOBS / world.job).read_text()
    first.write_text(text)
    second.write_text(f"{text}# another version\n")
    upgrade = ("upgrade", world.pipeline, str(second), "--shadow-commits", "2", "--stable-after", "0", *SUBMISSION)
    rollback = ("rollback", world.pipeline, *SUBMISSION)

    world.job = str(first)
    world.send(1500)
    pipeline.finish(pipeline.start())
    pipeline.command(*upgrade, failpoints=f"upgrade-{step}-taken", code=-signal.SIGKILL)
    done = pipeline.command(*upgrade)
    assert (done["outcome"], done["shadow"]["unintended"]) == ("done", [])
    world.send(900)
    refused = pipeline.start()
    assert refused.wait() == RefusedError.exit_code, refused.output()[-6000:]
    assert "VersionRefusedError" in refused.output()
    world.job = str(second)
    pipeline.finish(pipeline.start())

    first.unlink()  # the home has it
    if step_back is not None:
        pipeline.command(*rollback, failpoints=f"upgrade-{step_back}-taken", code=-signal.SIGKILL)
    assert pipeline.command(*rollback)["outcome"] == "rolled-back"
    world.send(300)
    first.write_text(text)
    world.job = str(first)
    pipeline.finish(pipeline.start())
    pipeline.check()
    shadow = pipeline.home.control / "shadow"
    assert not store_of(shadow).names(shadow)


#: Of the way back of a pipeline that is stopped, in their order.
STEPS_BACK = (
    *("upgrade-stop-new", "upgrade-stop-new-taken", "upgrade-restore"),
    *("restore-copied", "restore-renamed", "restore-switching", "restore-switched", "upgrade-restore-taken"),
    *(f"upgrade-{step}{when}" for step in ("start-old", "watch-old", "rest") for when in ("", "-taken")),
)


@pytest.mark.slow
@pytest.mark.parametrize("server", ["moto", *on_clusters("gcs", "azure", "hadoop")], indirect=True)
def test_a_rollback_that_is_killed_at_each_step_goes_on_there_and_writes_each_row_once(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    world = pipeline.world
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text((JOBS / world.job).read_text())
    second.write_text(f"{first.read_text()}# another version\n")
    world.job = str(first)
    world.send(1500)
    pipeline.finish(pipeline.start())
    pipeline.command(
        "upgrade", world.pipeline, str(second), "--shadow-commits", "1", "--stable-after", "0", *SUBMISSION
    )
    world.send(300)
    world.job = str(second)
    pipeline.finish(pipeline.start())
    before = pipeline.home.current()
    assert before is not None

    rollback = ("rollback", world.pipeline, *SUBMISSION)
    for step in STEPS_BACK:
        pipeline.command(*rollback, failpoints=step, code=-signal.SIGKILL)
    assert pipeline.command(*rollback)["outcome"] == "rolled-back"
    after = pipeline.home.current()
    assert after is not None
    assert after.id != before.id
    world.send(300)
    world.job = str(first)
    pipeline.finish(pipeline.start())
    pipeline.check()
    assert lineages.unfinished(pipeline.home.lineages) == []
    versions = [claim.version for claim in world.ledger()[1]]
    assert versions[0] == versions[-1] != versions[-3]


@pytest.mark.slow
@pytest.mark.parametrize("server", ["moto", *on_clusters("gcs", "azure", "hadoop")], indirect=True)
def test_a_restore_that_is_killed_at_each_step_is_repeated_and_exact(pipeline: Pipeline) -> None:
    world = pipeline.world
    world.send(900)
    pipeline.finish(pipeline.start())
    taken = pipeline.command("savepoint", world.pipeline)
    world.send(400)
    pipeline.finish(pipeline.start())
    restore = ("restore", world.pipeline, "--savepoint", taken["id"])
    for step in ("restore-copied", "restore-renamed", "restore-switching", "restore-switched"):
        pipeline.command(*restore, failpoints=step, code=-signal.SIGKILL)
        pipeline.command(*restore)
        world.send(200)
        pipeline.finish(pipeline.start())
        pipeline.check()
        assert lineages.unfinished(pipeline.home.lineages) == []


@pytest.mark.slow
@pytest.mark.parametrize("server", ["moto", *on_clusters("gcs", "azure", "hadoop")], indirect=True)
def test_a_savepoint_whose_driver_is_killed_at_each_step_is_taken_by_who_asked(pipeline: Pipeline) -> None:
    world = pipeline.world
    *steps, deletion = SAVEPOINT_NAMES
    taken = []
    for step in steps:
        world.send(600)
        driver = pipeline.start(until="forever", failpoints=step)
        pipeline.await_all(driver)
        taken.append(pipeline.command("savepoint", world.pipeline))
        assert driver.wait() == -signal.SIGKILL, driver.output()[-6000:]
    assert [saved["commit"] for saved in taken] == sorted({saved["commit"] for saved in taken})
    first, *kept = (saved["id"] for saved in taken)
    pipeline.command("savepoint", "delete", world.pipeline, first, failpoints=deletion, code=-signal.SIGKILL)
    assert [saved["id"] for saved in pipeline.command("savepoint", "list", world.pipeline)] == kept
    for savepoint in kept:
        assert pipeline.command("savepoint", "verify", world.pipeline, savepoint)["whole"]
    pipeline.command("savepoint", "clean-up", world.pipeline)
    home = pipeline.home
    assert sorted(store_of(home.savepoints).names(home.savepoints)) == sorted(kept)

    pipeline.command("restore", world.pipeline, "--savepoint", kept[0])
    world.send(300)
    pipeline.finish(pipeline.start())
    pipeline.check()


@pytest.mark.slow
@pytest.mark.parametrize("server", ["moto", *on_clusters("gcs", "azure", "hadoop")], indirect=True)
def test_a_rescale_that_is_killed_at_each_step_is_cleaned_up_by_its_repetition(pipeline: Pipeline) -> None:
    world = pipeline.world
    world.send(900)
    pipeline.finish(pipeline.start())
    original = pipeline.home.current()
    assert original is not None
    steps = (*RESCALE_NAMES[:2], *RESTORE_NAMES[:2], RESCALE_NAMES[2], *RESTORE_NAMES[2:4])
    rescale = ("rescale", world.pipeline, "--state-partitions")
    for partitions, step in enumerate(steps, start=3):
        pipeline.command(*rescale, str(partitions), failpoints=step, code=-signal.SIGKILL)
        current = pipeline.home.current()
        assert current is not None
        assert (current.id == original.id) is (step != "restore-switched"), step
    done = pipeline.command(*rescale, "4")
    assert (done["state_partitions_before"], done["abandoned"]) == (partitions, original.id)
    lineages_there = store_of(pipeline.home.lineages).names(pipeline.home.lineages)
    assert set(lineages_there) == {original.id, done["lineage"]}
    world.send(300)
    pipeline.finish(pipeline.start())
    pipeline.check()
