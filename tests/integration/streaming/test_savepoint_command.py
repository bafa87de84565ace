"""Savepoints as users take them: of a driver that runs, with a stop, and of a pipeline that is stopped."""

from __future__ import annotations

import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import lease, requests, status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.status import DriverState
from airflow_provider_exactlyonce.exceptions import RefusedError
from tests import commands
from tests.integration.streaming.harness import World, check_counts
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(3600)


def run(world: World, *arguments: str) -> Any:
    """Run a subcommand of ``savepoint``; returns its JSON."""
    return commands.run("savepoint", *arguments, *world.servers, "--json").body


def verified(home: Home, pipeline: str, savepoint: str, code: int = 0) -> Any:
    """Verify a savepoint, whose state Spark opens; returns the command's JSON."""
    return commands.run("savepoint", "verify", pipeline, savepoint, "--home", str(home.path), "--json", code=code).body


def state_of(world: World) -> DriverState | None:
    driver_status = status.read(Home(world.home).status)
    return driver_status.state if driver_status else None


def test_a_running_driver_takes_one_without_stopping_and_one_with_a_stop_and_a_stopped_pipeline_gives_one(
    world: World, spark: object
) -> None:
    world.send(1500)
    driver = world.start(until="forever")
    home = Home(world.home)
    requests.request_savepoint(home, requests.SavepointRequest(request="aa", token="another driver's", stop=True))
    eventually(lambda: world.commits() >= 2, "it commits")
    first = run(world, world.pipeline, "--label", "while it runs")
    eventually(lambda: world.commits() >= 4, "all input is committed")
    time.sleep(1.5)  # the query is idle
    idle = run(world, world.pipeline)
    assert (first["label"], idle["commit"], state_of(world)) == ("while it runs", 4, DriverState.RUNNING)
    world.send(1500)
    stopped = run(world, world.pipeline, "--stop", "--label", "last")
    assert driver.wait() == 0, driver.output()[-3000:]
    assert state_of(world) is DriverState.STOPPED

    lineage = home.current()
    assert lineage is not None
    checkpoint = Checkpoint(home.checkpoint(lineage.id))
    commits, _ = world.ledger()
    assert stopped["commit"] == commits[-1].commit, "no batch was begun after it"
    assert stopped["batch"] == checkpoint.newest_commit()
    saved = Savepoints(home.savepoints)
    for taken in saved.list():
        record = commits[taken.commit - 1]
        assert (taken.lineage, taken.batch, taken.run) == (record.lineage, record.batch, record.run)
        assert taken.source == {world.source: {p: end for p, (_, end) in record.source[world.source].items()}}
        assert taken.sink == {world.sink: {p: of.last for p, of in record.sink.get(world.sink, {}).items()}}
        assert (taken.state_backend, taken.state_format, taken.spark_version) == ("rocksdb", 2, "4.2.0")
        assert '"total"' in (taken.result_schema or "")
        assert saved.verify(taken.id) == []
        newest = saved.checkpoint(taken.id)
        assert (newest.newest_offsets(), newest.newest_commit()) == (taken.batch, taken.batch)
    assert [file.name for file in home.commands.glob("savepoint-*")] == ["savepoint-aa.json"]

    shown = commands.run("status", world.pipeline, *world.at_home).out
    assert re.search(r"\nstateful operator +rows .*\nstateStoreSave +37 ", shown)

    here = run(world, world.pipeline, "--label", "of the stopped pipeline")
    assert here["commit"] == stopped["commit"]
    assert lease.read(home.lease) is None
    listed = run(world, "list", world.pipeline)
    assert [savepoint["id"] for savepoint in listed] == [first["id"], idle["id"], stopped["id"], here["id"]]
    run(world, "pin", world.pipeline, first["id"])
    assert run(world, "clean-up", world.pipeline, "--count", "0", "--days", "0")["deleted"] == [
        idle["id"],
        stopped["id"],
    ]
    run(world, "unpin", world.pipeline, first["id"])
    run(world, "delete", world.pipeline, first["id"])
    shutil.rmtree(checkpoint.path)
    body = verified(home, world.pipeline, here["id"])
    assert (body["whole"], body["defects"]) == (True, [])
    assert body["state"] == [{"operator": 0, "name": "stateStoreSave", "store": "default", "rows": 37}]
    table = next(saved.checkpoint(here["id"]).path.glob("state/0/0/SSTs/*.sst"))
    table.write_bytes(b"torn")
    body = verified(home, world.pipeline, here["id"], code=RefusedError.exit_code)
    assert (body["whole"], body["state"]) == (False, None)
    assert table.name in body["defects"][0]


@pytest.mark.slow
def test_a_driver_that_dies_while_it_takes_one_leaves_it_to_who_asked(world: World) -> None:
    world.send(1500)
    driver = world.start(until="forever", failpoints="during-savepoint")
    eventually(lambda: world.commits() >= 2, "it commits")
    taken = run(world, world.pipeline)
    assert driver.wait() == -signal.SIGKILL
    store = Savepoints(Home(world.home).savepoints)
    assert [savepoint.id for savepoint in store.list()] == [taken["id"]]
    # The driver's own is left where another commit has followed in the moment of its end.
    left = {entry.name for entry in store.directory.iterdir()} - {taken["id"]}
    assert left == set(store.leftovers())
    assert store.verify(taken["id"]) == []
    again = world.start()
    assert again.wait() == 0, again.output()[-3000:]
    check_counts(world)


def test_a_pipeline_that_does_not_exist_is_refused(kafka_config: dict[str, str], tmp_path: Path) -> None:
    servers = ("--bootstrap-servers", kafka_config["bootstrap.servers"])
    commands.run("savepoint", "no-such-pipeline", *servers, code=RefusedError.exit_code)
    commands.run("savepoint", "list", "p", "--home", str(tmp_path), code=RefusedError.exit_code)
