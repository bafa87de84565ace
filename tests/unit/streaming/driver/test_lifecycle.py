"""What a driver's process tells at its end, and with which code it exits."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from airflow_provider_exactlyonce.control import json_store, status
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.status import DriverState
from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    DivergedError,
    ExactlyOnceError,
    FencedError,
    RefusedError,
    StopRequestedError,
)
from airflow_provider_exactlyonce.storage.store import OutcomeUnknownError
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline
from airflow_provider_exactlyonce.streaming.commit.run import Run
from airflow_provider_exactlyonce.streaming.commit.sink_group import SinkGroup
from airflow_provider_exactlyonce.streaming.driver import lifecycle as lifecycles
from airflow_provider_exactlyonce.streaming.driver.lifecycle import DriverLifecycle
from airflow_provider_exactlyonce.streaming.driver.options import DriverOptions
from tests.unit.checkpoint import crafted


@pytest.fixture
def lifecycle(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DriverLifecycle]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    declared = pipeline(name="p", source=KafkaSource("in"), sink=KafkaSink("out"))(lambda events: events)
    home = Home(tmp_path)
    home.create("p")
    until = getattr(request, "param", "forever")
    made = DriverLifecycle(declared, DriverOptions(home=home, config={}, token="t", until=until), "p")
    made.report.own(alone=True)
    yield made
    for number, handler in kept.items():
        signal.signal(number, handler)


def raising(error: Exception) -> Callable[[], NoReturn]:
    def work() -> NoReturn:
        raise error

    return work


def status_of(path: Path) -> status.Status:
    driver_status = status.read(Home(path).status)
    assert driver_status is not None
    return driver_status


def test_work_that_is_done_ends_with_0(lifecycle: DriverLifecycle, tmp_path: Path) -> None:
    assert lifecycle.run(lambda: None) == 0
    assert status_of(tmp_path).state is DriverState.FINISHED


def test_a_stop_that_was_asked_for_ends_with_0_and_so_does_one_because_the_work_is_done(
    lifecycle: DriverLifecycle, tmp_path: Path
) -> None:
    assert lifecycle.run(raising(StopRequestedError("somebody"))) == 0
    assert status_of(tmp_path).state is DriverState.STOPPED
    lifecycle.stop.done = "commit 7 is there"
    assert lifecycle.run(raising(StopRequestedError("commit 7 is there"))) == 0
    assert status_of(tmp_path).state is DriverState.FINISHED


@pytest.mark.parametrize("error", [DivergedError("other rows"), BatchFailedError("three times")])
def test_an_error_of_ours_ends_with_its_own_code(
    lifecycle: DriverLifecycle, tmp_path: Path, error: ExactlyOnceError
) -> None:
    assert lifecycle.run(raising(error)) == error.exit_code
    failed = status_of(tmp_path)
    assert (failed.state, failed.error and failed.error.kind) == (DriverState.FAILED, type(error).__name__)


@pytest.mark.parametrize(
    ("state", "error"),
    [(DriverState.RUNNING, BatchFailedError("three times")), (DriverState.STARTING, RefusedError("no such topic"))],
)
def test_a_stop_hides_no_failure_of_a_batch_and_no_refusal(
    lifecycle: DriverLifecycle, tmp_path: Path, state: DriverState, error: ExactlyOnceError
) -> None:
    lifecycle.report.tell(state=state)
    lifecycle.stop.request("somebody")
    assert lifecycle.run(raising(error)) == error.exit_code
    assert status_of(tmp_path).state is DriverState.FAILED


def test_any_other_error_ends_with_1(lifecycle: DriverLifecycle, tmp_path: Path) -> None:
    assert lifecycle.run(raising(RuntimeError("a mystery"))) == 1
    assert status_of(tmp_path).state is DriverState.FAILED


@pytest.mark.parametrize("error", [RuntimeError("Spark is gone"), BatchFailedError("its job was cancelled")])
def test_what_a_signal_breaks_in_the_middle_of_a_batch_is_a_stop(
    lifecycle: DriverLifecycle, tmp_path: Path, error: Exception
) -> None:
    def work() -> None:
        signal.raise_signal(signal.SIGTERM)
        raise error

    assert lifecycle.run(work) == 0
    assert status_of(tmp_path).state is DriverState.STOPPED


def test_a_signal_does_not_hide_what_a_restart_would_not_mend(lifecycle: DriverLifecycle) -> None:
    def work() -> None:
        signal.raise_signal(signal.SIGTERM)
        raise DivergedError("other rows")

    assert lifecycle.run(work) == DivergedError("other rows").exit_code


def test_what_is_open_is_closed_whatever_ends_the_work(lifecycle: DriverLifecycle) -> None:
    closed: list[str] = []
    lifecycle.closing.callback(closed.append, "committer")
    lifecycle.closing.callback(closed.append, "replay")
    lifecycle.run(raising(RuntimeError("a mystery")))
    assert closed == ["replay", "committer"]


def test_a_home_without_an_answer_changes_no_exit_code_and_keeps_nothing_open(
    lifecycle: DriverLifecycle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    home, run = Home(tmp_path), Run.__new__(Run)  # a whole one asks Kafka
    reader, sources = (SimpleNamespace(close=partial(closed.append, name)) for name in ("reader", "sources"))
    vars(run).update(home=home, _lease=leases.acquire(home.lease, "p", "t"), _reader=reader, sources=sources)
    monkeypatch.setattr(lifecycle, "_run", run)
    lifecycle.closing.callback(closed.append, "committer")

    def fail(*_: object, **__: object) -> None:
        raise OutcomeUnknownError("no answer")

    monkeypatch.setattr(json_store, "write", fail)
    monkeypatch.setattr(json_store, "remove", fail)
    assert lifecycle.run(raising(FencedError("a higher run"))) == FencedError.exit_code
    assert closed == ["reader", "sources", "committer"]


def started(lifecycle: DriverLifecycle, patch: pytest.MonkeyPatch, ledger: crafted.Ledger) -> status.Status:
    """Let a run begin, without Kafka and Spark, and return what it tells before its first commit."""
    run: Any = SimpleNamespace(
        start=lambda: None, tail=ledger.tail(), number=2, lineage=SimpleNamespace(id=crafted.LINEAGE), pipeline="p"
    )
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(applicationId="local-1", uiWebUrl=None))
    patch.setattr(lifecycles, "Heartbeat", lambda *_: SimpleNamespace(start=lambda: None))
    lifecycle.start_run(run, spark, SinkGroup("p", {}))
    return lifecycle.report.status


def test_what_the_ledger_knows_of_event_time_and_late_rows_is_told_before_the_first_commit(
    lifecycle: DriverLifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert started(lifecycle, monkeypatch, crafted.Ledger()).watermark == 0
    told = started(lifecycle, monkeypatch, crafted.Ledger(replace(crafted.record(7), late_total=3)))
    assert (told.commit, told.watermark, told.late_total) == (8, 7000, 3)


@pytest.mark.parametrize("lifecycle", ["commits:1", "watermark:1970-01-01T00:00:07Z"], indirect=True)
def test_a_goal_that_the_ledger_has_reached_ends_a_run_in_which_nothing_arrives(
    lifecycle: DriverLifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifecycle.stop.begin()
    started(lifecycle, monkeypatch, crafted.Ledger(crafted.record(7)))
    lifecycle.report.tell(state=DriverState.RUNNING)
    assert lifecycle.stop.reason() is not None
