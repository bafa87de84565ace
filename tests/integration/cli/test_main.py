"""The command ``exactlyonce`` on a real cluster: what it says of pipelines, and of names that are none."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_exactlyonce.control import json_store, lease, restarts, status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.restarts import Restart
from airflow_provider_exactlyonce.control.status import DriverState, Status
from airflow_provider_exactlyonce.exceptions import UnknownPipelineError
from airflow_provider_exactlyonce.ledger import topic
from airflow_provider_exactlyonce.ledger.records import OtherSink, backfill_pipeline
from airflow_provider_exactlyonce.streaming.job import loader
from airflow_provider_exactlyonce.streaming.sinks.ledger_comparison import compare
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkContext, SinkEntry
from tests import commands
from tests.conftest import MakeTopic
from tests.integration.ledger.crafted import CraftedPipeline, rows_of


@pytest.fixture(autouse=True)
def cluster(kafka_config: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXACTLYONCE_KAFKA", kafka_config["bootstrap.servers"])


@pytest.fixture
def crafted(kafka_config: Mapping[str, str], make_topic: MakeTopic) -> Iterator[CraftedPipeline]:
    with CraftedPipeline(kafka_config, f"shop-{uuid.uuid4().hex[:8]}", make_topic(partitions=2)) as pipeline:
        yield pipeline


def listed() -> dict[str, dict[str, Any]]:
    return {pipeline["pipeline"]: pipeline for pipeline in commands.run("list", "--json").body["pipelines"]}


def test_list_shows_the_last_commit_the_run_the_state_and_the_home_of_each_pipeline(
    crafted: CraftedPipeline, tmp_path: Path
) -> None:
    home = Home(tmp_path / "home")
    home.create(crafted.pipeline)
    crafted.claim(home=home.identity(), home_path=str(home.path), pid=os.getpid())
    crafted.commit(rows_of(0))
    crafted.settle()
    pipeline = listed()[crafted.pipeline]
    assert (pipeline["run"], pipeline["commit"], pipeline["version"], pipeline["guarantee"]) == (
        1,
        1,
        "v",
        "exactly_once",
    )
    assert pipeline["committed"].startswith("20")
    assert (pipeline["home"], pipeline["state"]) == (str(home.path), "absent")
    with lease.holding(home.lease, crafted.pipeline, "t"):
        assert listed()[crafted.pipeline]["state"] == "starting"
    [line] = [line for line in commands.run("list").out.splitlines() if line.startswith(crafted.pipeline)]
    assert str(home.path) in line.split()


def test_list_shows_a_pipeline_without_a_commit_one_without_a_claim_and_tells_backfills_apart(
    crafted: CraftedPipeline, kafka_config: Mapping[str, str]
) -> None:
    crafted.claim(home_path="/nowhere/home")
    backfills, begun = backfill_pipeline(crafted.pipeline), f"begun-{crafted.pipeline}"
    for name in (backfills, begun):
        topic.ensure(kafka_config, name)
    pipelines = listed()
    of = {name: pipelines[name] for name in (crafted.pipeline, backfills, begun)}
    assert {name: pipeline["backfills_of"] for name, pipeline in of.items()} == {
        crafted.pipeline: None,
        backfills: crafted.pipeline,
        begun: None,
    }
    assert {name: (pipeline["run"], pipeline["commit"], pipeline["committed"]) for name, pipeline in of.items()} == {
        crafted.pipeline: (1, 0, None),
        backfills: (None, 0, None),
        begun: (None, 0, None),
    }
    assert of[crafted.pipeline]["state"] == "unknown", "its home is not here, so nothing is known of its driver"


def test_status_says_between_a_death_and_the_restart_that_the_driver_is_gone_and_who_starts_the_next_one(
    crafted: CraftedPipeline, tmp_path: Path
) -> None:
    def shown() -> dict[str, Any]:
        return dict(commands.run("status", crafted.pipeline, "--json").body)

    home = Home(tmp_path / "home")
    crafted.claim(home_path=str(home.path))
    assert (shown()["driver"], shown()["state"]) == ("unknown", None)
    assert shown()["next"] == f"{home.path} is not on this machine: nothing is known of the driver"
    home.create(crafted.pipeline)
    held = lease.acquire(home.lease, crafted.pipeline, "t", run=1)
    status.write(home.status, Status(pipeline=crafted.pipeline, token="t", state=DriverState.RUNNING, run=1))
    assert (shown()["driver"], shown()["state"], shown()["next"]) == ("alive", "running", None)
    json_store.write(home.lease, {**asdict(held), "process_started": 1})  # a process that has ended
    died = Restart(series="t", number=1, token="t", run=1, commit=0, cause="killed", exit_code=-9, died=time.time())
    restarts.append(home.restarts, replace(died, due=time.time() + 600))
    assert (shown()["driver"], shown()["state"]) == ("gone", "lost")
    assert "is gone without an account, and no successor has started" in shown()["next"]
    assert "its supervisor starts the next one at" in shown()["next"]


COMMANDS = [
    ["status"],
    ["stop"],
    ["savepoint"],
    ["savepoint", "list"],
    ["state", "show", "--operator", "0"],
    ["restore"],
    ["rescale", "--state-partitions", "2"],
    ["upgrade", "PIPELINE", "job.py"],
    ["rollback"],
    ["backfill", "--commits", "1..2"],
    ["audit"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_misspelt_pipeline_is_told_which_ones_there_are(crafted: CraftedPipeline, command: list[str]) -> None:
    crafted.claim()
    misspelt = crafted.pipeline.replace("shop", "shp").upper()
    given = [misspelt if word == "PIPELINE" else word for word in command]
    words = given if given != command else [*command, misspelt]
    said = commands.run(*words, code=UnknownPipelineError.exit_code).err.splitlines()[-1]
    assert said.startswith(f"UnknownPipelineError: pipeline {misspelt} has no ledger on this cluster")
    assert f"Is it {crafted.pipeline}" in said


def test_the_doctor_tells_which_pipelines_there_are_too(crafted: CraftedPipeline) -> None:
    crafted.claim()
    [finding] = commands.run("doctor", crafted.pipeline[:-1], "--json", code=1).body["findings"]
    assert finding["name"] == "ledger-missing"
    assert f"Is it {crafted.pipeline}" in finding["do"]


class BusySink:
    """A sink to which the pipeline commits before and after the audit reads what it has; it has forgotten commit 1."""

    name = "lake"

    def __init__(self, pipeline: CraftedPipeline) -> None:
        self.pipeline = pipeline
        self.entries: dict[int, SinkEntry] = {}

    def commit(self, oldest: int = 1) -> None:
        record = self.pipeline.commit(
            {}, others={self.name: OtherSink(rows=0, digest=0)}, before=replace(self.pipeline.place, oldest=oldest)
        )
        self.entries[record.commit] = SinkEntry.of(record, self.name)

    def open(self, context: SinkContext) -> BusySink:
        self.verifies_checksums = context.verifies_checksums
        return self

    def audit(self, commits: Iterable[SinkEntry]) -> Iterable[str]:
        for _ in range(2):
            self.commit(oldest=2)
        del self.entries[1]
        has = dict(self.entries)
        for _ in range(2):
            self.commit(oldest=2)
        self.pipeline.settle()
        return compare(has, commits, "it")

    def close(self) -> None:
        """Hold nothing."""


@pytest.mark.parametrize("options", [[], ["--checksums"]])
def test_the_sinks_of_a_pipeline_that_runs_agree_with_its_ledger(
    crafted: CraftedPipeline, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    sink = BusySink(crafted)
    job = SimpleNamespace(name=crafted.pipeline, routes=SimpleNamespace(others=[SimpleNamespace(sink=sink)]))
    monkeypatch.setattr(loader, "load", lambda file, name: job)
    crafted.claim()
    for _ in range(2):
        sink.commit()
    crafted.settle()
    assert "sink lake: agrees with the ledger" in commands.run("audit-sinks", "job.py", *options).out
    assert sink.verifies_checksums == bool(options)
