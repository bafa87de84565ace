"""A savepoint of a pipeline that is stopped, or whose driver is lost with its host."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.checkpoint import request
from airflow_provider_exactlyonce.checkpoint.manifest import Savepoint
from airflow_provider_exactlyonce.checkpoint.request import SavepointTaker
from airflow_provider_exactlyonce.control import drivers, json_store, processes, requests
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.requests import WaitCondition
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, RefusedError
from tests.clocks import StandingClock
from tests.unit.checkpoint import crafted


def test_of_what_a_reemit_restored_there_is_none_before_its_first_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    lineage = crafted.reemitting(home)
    ledger = crafted.reemitted()
    monkeypatch.setattr(request, "LedgerReader", lambda config, pipeline: ledger)
    with pytest.raises(RefusedError, match="take a savepoint after its first commit"):
        request.take(home, "p", {})
    home.remember(replace(lineage, base_batch=1))
    ledger.written.append(crafted.record(2, commit=21))
    assert request.take(home, "p", {}).commit == 21


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    clock = StandingClock()
    for module in (drivers, leases, processes):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(request, "LedgerReader", lambda config, pipeline: crafted.Ledger(crafted.record(2)))
    return clock


def held(home: Home, machine: str = "elsewhere") -> None:
    """Make a pipeline whose driver holds the lease, and gives no sign of life."""
    home.create("p")
    crafted.checkpoint(home.checkpoint(crafted.LINEAGE))
    home.remember(Lineage(id=crafted.LINEAGE))
    home.use(crafted.LINEAGE)
    lease = leases.acquire(home.lease, "p", "t", run=1)
    json_store.write(home.lease, asdict(replace(lease, machine=machine or lease.machine)))


def asked(home: Home) -> Savepoint | WaitCondition:
    return SavepointTaker(home, "p", dict, request="ab").advance()


@pytest.mark.parametrize("was_asked", [False, True])
def test_of_a_pipeline_whose_driver_is_lost_with_its_host_it_is_taken_here(
    tmp_path: Path, clock: StandingClock, *, was_asked: bool
) -> None:
    home = Home(tmp_path / "home")
    held(home)
    if was_asked:
        requests.request_savepoint(home, requests.SavepointRequest(request="ab", token="t"))
    taken = asked(home)
    assert isinstance(taken, Savepoint)
    assert taken.commit == 3


def test_of_a_driver_that_is_lost_and_about_to_be_restarted_its_successor_takes_it(
    tmp_path: Path, clock: StandingClock
) -> None:
    home = Home(tmp_path / "home")
    held(home)
    intents.write(
        home.intent,
        Intent(token="t", owner="o", until="forever", series="t", restarts=0, log="", host="elsewhere", machine="m"),
    )
    waits = asked(home)
    assert isinstance(waits, WaitCondition)
    assert not drivers.has_happened(home, waits), "nobody is woken until there is something to do"
    clock.now += drivers.RESTART_GRACE_SECONDS
    assert isinstance(asked(home), Savepoint), "its supervisor is lost, too"


def test_a_driver_of_this_host_that_is_frozen_holds_the_pipeline(tmp_path: Path, clock: StandingClock) -> None:
    home = Home(tmp_path / "home")
    held(home, machine="")
    with pytest.raises(AlreadyRunningError, match="gives no sign of life and holds the pipeline"):
        asked(home)
