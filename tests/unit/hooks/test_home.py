from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control import moving
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.moving import Move
from airflow_provider_exactlyonce.exceptions import HomeMovedError, RefusedError, UnknownPipelineError
from airflow_provider_exactlyonce.hooks import home as homes
from airflow_provider_exactlyonce.hooks import kafka
from airflow_provider_exactlyonce.ledger import home as ledger_home
from airflow_provider_exactlyonce.operators.savepoint import (
    CleanUpSavepointsOperator,
    SavepointOperator,
    StopPipelineOperator,
)
from airflow_provider_exactlyonce.sensors.pipeline_state import PipelineStateSensor
from tests.ledger_records import claim_record


def name_in_ledger(monkeypatch: pytest.MonkeyPatch, home: Home, identity: str | None = None) -> None:
    """Let the ledger of each pipeline name a home."""
    claim = claim_record(4, home=identity or home.identity(), home_path=str(home), host="worker-1")
    monkeypatch.setattr(kafka, "client_config", lambda conn_id: {})
    monkeypatch.setattr(ledger_home, "newest_claim", lambda config, pipeline: claim)


def test_a_task_hears_where_the_home_was_moved_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it names the home, or only the pipeline, whose ledger names the old home until the next start."""
    home = Home(tmp_path / "old")
    lineage = home.create("shop")
    assert homes.find("kafka_default", pipeline="shop", checkpoint=str(home.path))[1] == "shop"
    name_in_ledger(monkeypatch, home)
    assert homes.find("kafka_default", pipeline="shop", checkpoint=None)[0].path == home.path
    move = Move(source=str(home.path), target="s3://bucket/shop", lineage=lineage.id, run=1)
    with leases.holding(home.lease, "shop", "copy") as hold, hold.sure():
        moving.seal(home.path, move, hold.pointer)
    for checkpoint in (str(home.path), None):
        with pytest.raises(HomeMovedError, match="was moved to s3://bucket/shop: name that home"):
            homes.find("kafka_default", pipeline="shop", checkpoint=checkpoint)


@pytest.mark.parametrize("is_another_there", [False, True], ids=["not mounted", "another home at the same path"])
def test_a_home_that_this_machine_does_not_see_is_refused_by_all_that_name_the_pipeline_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_another_there: bool
) -> None:
    """There is no lease, so a stop would be done at once, and would leave its request below the mount point."""
    home = Home(tmp_path / "shop")
    if is_another_there:
        home.create("shop")
    before = sorted(tmp_path.rglob("*"))
    name_in_ledger(monkeypatch, home, identity="the ledger's")
    there = f"home {home.identity()} of pipeline shop" if is_another_there else "nothing"
    with pytest.raises(RefusedError) as refused:
        homes.find("kafka_default", pipeline="shop", checkpoint=None)
    assert not isinstance(refused.value, UnknownPipelineError), "which a sensor takes for a pipeline that never ran"
    said = str(refused.value)
    for part in (
        f"{home} is not the home of pipeline shop on this machine, {socket.gethostname()}: {there} is there",
        "run 4 started from home the ledger's at that path on worker-1",
        "checkpoint= of a task, --home of a command",
    ):
        assert part in said
    for kind in (StopPipelineOperator, SavepointOperator, CleanUpSavepointsOperator):
        with pytest.raises(AirflowFailException, match="is not the home of pipeline shop on this machine"):
            kind(task_id="task", pipeline="shop").execute({})
    for deferrable in (False, True):
        sensor = PipelineStateSensor(task_id="state", pipeline="shop", states="absent", deferrable=deferrable)
        with pytest.raises(AirflowFailException, match="is not the home of pipeline shop on this machine"):
            sensor.execute({})
    assert sorted(tmp_path.rglob("*")) == before


def test_a_home_that_was_moved_with_accept_home_is_found_where_its_newest_run_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its identity moves with it."""
    old = Home(tmp_path / "old")
    old.create("shop")
    shutil.move(old.path, tmp_path / "new")
    moved = Home(tmp_path / "new")
    name_in_ledger(monkeypatch, moved)
    assert homes.find("kafka_default", pipeline="shop", checkpoint=None)[0].path == moved.path
