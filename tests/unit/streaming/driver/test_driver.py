"""What a driver does at an end that was asked for, and before its first commit; its run is made without Kafka."""

from __future__ import annotations

import re
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from airflow_provider_exactlyonce.checkpoint.recovery import recover
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control import requests, status
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.control.requests import SavepointAnswer, SavepointRequest
from airflow_provider_exactlyonce.control.status import DriverState
from airflow_provider_exactlyonce.exceptions import RefusedError, StopRequestedError
from airflow_provider_exactlyonce.kafka.wire import UnansweredError
from airflow_provider_exactlyonce.storage.local import LocalStore
from airflow_provider_exactlyonce.storage.store import OutcomeUnknownError
from airflow_provider_exactlyonce.streaming import CheckpointConfig, KafkaSink, KafkaSource, OnCancellation, pipeline
from airflow_provider_exactlyonce.streaming.commit import run as runs
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions
from airflow_provider_exactlyonce.streaming.commit.sink_group import SinkGroup
from airflow_provider_exactlyonce.streaming.driver.driver import Driver
from airflow_provider_exactlyonce.streaming.driver.options import DriverOptions
from airflow_provider_exactlyonce.streaming.sinks.delta.log import DeltaLog
from airflow_provider_exactlyonce.streaming.sinks.delta.sink import DeltaSink
from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable
from airflow_provider_exactlyonce.streaming.sinks.iceberg.sink import IcebergSink
from airflow_provider_exactlyonce.streaming.sinks.lakehouse import versions
from airflow_provider_exactlyonce.streaming.sinks.spi import Sink, SinkContext
from tests.frozen import WRITES, at_each
from tests.ledger_records import claim_record
from tests.unit.checkpoint import crafted


class Unanswered(crafted.Ledger):
    """One that can't be read."""

    def tail(self) -> NoReturn:
        raise UnansweredError("no answer")


class Stopped:
    """The driver of run 1, stopped before its next batch; its pipeline says that a stop deletes the checkpoint.

    :param on_cancellation: how the pipeline says so
    :ivar serves: whether it has come so far that it serves savepoints
    """

    def __init__(
        self, home: Home, patch: pytest.MonkeyPatch, on_cancellation: OnCancellation = OnCancellation.DELETE
    ) -> None:
        checkpoint = CheckpointConfig(on_cancellation=on_cancellation)
        declared = pipeline(name="p", source=KafkaSource("in"), sink=KafkaSink("out"), checkpoint=checkpoint)
        options = RunOptions(config={}, token="a", version="v", transaction_timeout_milliseconds=1)
        home.create("p")
        self.lineage, self.home, self.serves = Lineage(id=crafted.LINEAGE), home, True
        self.ledger = crafted.Ledger(crafted.record(2), claim=claim_record(1))
        home.remember(self.lineage)
        home.use(crafted.LINEAGE)
        self.checkpoint = crafted.checkpoint(home.checkpoint(crafted.LINEAGE)).path
        self.run = run = Run.__new__(Run)  # a whole one asks Kafka
        lease = leases.acquire(home.lease, "p", "a", run=1)
        closed = SimpleNamespace(close=lambda: None)
        vars(run).update(home=home, pipeline="p", options=options, number=1, sources=closed)
        vars(run).update(_lineage=self.lineage, _lease=lease, _reader=closed, _tail=self.ledger.tail())
        self.driver = Driver(declared(lambda events: events), DriverOptions(home=home, config={}, token="a"))
        lifecycle = self.driver._lifecycle
        lifecycle.report.own()
        lifecycle.report.tell(run=1, state=DriverState.RUNNING)
        patch.setattr(lifecycle, "_run", run)
        patch.setattr(lifecycle, "_heartbeat", SimpleNamespace(stop=self._note_silence))
        patch.setattr(self.driver, "_work", self._stop)
        patch.setattr(runs, "LedgerReader", lambda config, name: self.ledger)
        self.at_silence: list[tuple[bool, DriverState]] = []
        requests.request_stop(home, "a", reason="exactlyonce stop")

    def end(self) -> int:
        return self.driver.run()

    def state(self) -> DriverState:
        told = status.read(self.home.status)
        assert told is not None
        return told.state

    def _stop(self) -> NoReturn:
        if self.serves:
            self.driver._serve_savepoints(self.run)
        raise StopRequestedError("somebody")

    def _note_silence(self) -> None:
        self.at_silence.append((self.checkpoint.exists(), self.state()))


@pytest.fixture
def stopped(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stopped]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield Stopped(Home(tmp_path / "home"), monkeypatch, getattr(request, "param", OnCancellation.DELETE))
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("stopped", [OnCancellation.DELETE, "delete"], indirect=True)
def test_a_checkpoint_is_deleted_while_the_driver_gives_signs_of_life(stopped: Stopped) -> None:
    assert stopped.end() == 0
    assert not stopped.checkpoint.exists()
    assert stopped.at_silence[0] == (False, DriverState.RUNNING)
    assert stopped.state() is DriverState.STOPPED


def supersede(stopped: Stopped) -> None:
    stopped.ledger = crafted.Ledger(claim=claim_record(2))
    leases.acquire(stopped.home.lease, "p", "b", run=2)


def about_to_supersede(stopped: Stopped) -> None:
    leases.acquire(stopped.home.lease, "p", "b")


def has_superseded(stopped: Stopped) -> None:
    stopped.ledger = crafted.Ledger(claim=claim_record(2))
    stopped.home.lease.unlink()


def superseded_by_whom_the_lease_does_not_name(stopped: Stopped) -> None:
    stopped.ledger = crafted.Ledger(claim=claim_record(2))


def ledger_without_an_answer(stopped: Stopped) -> None:
    stopped.ledger = Unanswered()


@pytest.mark.parametrize(
    "meanwhile",
    [
        supersede,
        about_to_supersede,
        has_superseded,
        superseded_by_whom_the_lease_does_not_name,
        ledger_without_an_answer,
    ],
)
def test_a_checkpoint_on_which_a_successor_may_run_stays(
    stopped: Stopped, caplog: pytest.LogCaptureFixture, meanwhile: Callable[[Stopped], None]
) -> None:
    meanwhile(stopped)
    before = sorted(stopped.checkpoint.rglob("*"))
    assert stopped.end() == 0
    assert sorted(stopped.checkpoint.rglob("*")) == before
    assert f"{stopped.checkpoint} is not deleted" in caplog.text


def nobody_asks(stopped: Stopped, _: pytest.MonkeyPatch) -> None:
    (stopped.home.commands / "stop.json").unlink()


def another_driver_was_asked(stopped: Stopped, _: pytest.MonkeyPatch) -> None:
    requests.request_stop(stopped.home, "b", reason="exactlyonce stop")


def its_task_ends(stopped: Stopped, _: pytest.MonkeyPatch) -> None:
    requests.note_killed(stopped.home, "a", "a task")


def ask(stopped: Stopped) -> None:
    for request, stop in (("aa", True), ("bb", False)):
        requests.request_savepoint(stopped.home, SavepointRequest(request=request, token="a", label=None, stop=stop))


def a_savepoint_fails(stopped: Stopped, _: pytest.MonkeyPatch) -> None:
    ask(stopped)
    next(stopped.checkpoint.glob("state/0/1/SSTs/000002-*")).unlink()


def a_savepoint_has_an_unknown_outcome(stopped: Stopped, patch: pytest.MonkeyPatch) -> None:
    ask(stopped)
    patch.setattr(Savepoints, "take", raising(OutcomeUnknownError("no answer")))


def the_savepoints_that_are_asked_for_are_not_known(stopped: Stopped, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(requests, "savepoint_requests", raising(OSError("no answer")))


def whether_a_stop_was_asked_for_is_not_known(stopped: Stopped, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(requests, "stop_requested", raising(OSError("no answer")))


def it_serves_no_savepoints_yet(stopped: Stopped, _: pytest.MonkeyPatch) -> None:
    ask(stopped)
    stopped.serves = False


def raising(error: Exception) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


@pytest.mark.parametrize(
    "meanwhile",
    [
        nobody_asks,
        another_driver_was_asked,
        its_task_ends,
        a_savepoint_fails,
        a_savepoint_has_an_unknown_outcome,
        the_savepoints_that_are_asked_for_are_not_known,
        whether_a_stop_was_asked_for_is_not_known,
        it_serves_no_savepoints_yet,
    ],
)
def test_a_checkpoint_that_somebody_may_go_on_from_or_save_stays(
    stopped: Stopped, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Stopped, pytest.MonkeyPatch], None]
) -> None:
    meanwhile(stopped, monkeypatch)
    before = sorted(stopped.checkpoint.rglob("*"))
    assert stopped.end() == 0
    assert sorted(stopped.checkpoint.rglob("*")) == before
    assert stopped.state() is DriverState.STOPPED


def test_a_checkpoint_is_deleted_once_each_savepoint_that_was_asked_for_is_taken(stopped: Stopped) -> None:
    ask(stopped)
    stopped.end()
    assert not stopped.checkpoint.exists()
    answers = [requests.savepoint_answer(stopped.home, request) for request in ("aa", "bb")]
    taken = sorted(str(answer and answer.savepoint) for answer in answers)
    savepoints = Savepoints(stopped.home.savepoints)
    assert sorted(savepoint.id for savepoint in savepoints.list()) == taken
    assert not any(savepoints.verify(savepoint) for savepoint in taken)


def test_a_checkpoint_that_is_half_deleted_is_none_to_go_on_from(
    stopped: Stopped, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool | None] = []

    def freeze(_: object, path: Path) -> None:
        found.append(stopped.home.uses(stopped.lineage.id))

    monkeypatch.setattr(LocalStore, "remove", freeze)
    stopped.end()
    assert found == [False]
    with pytest.raises(RefusedError, match="state of pipeline p is lost: checkpoint was deleted"):
        recover(stopped.home, "p", {}, stopped.ledger.tail())
    assert stopped.checkpoint.exists()


@pytest.mark.usefixtures("stopped")
def test_a_driver_that_was_frozen_while_it_deleted_its_checkpoint_deletes_nothing_of_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store without locks keeps nobody out; each request of the frozen driver may be the one that is late."""
    monkeypatch.setattr(LocalStore, "has_locks", False)
    went_on: set[bool | None] = set()

    def scene() -> tuple[Callable[[], object], Callable[[], None]]:
        stopped = Stopped(Home(tmp_path / str(uuid.uuid4())), monkeypatch)
        left: dict[Path, bytes] = {}

        def succeed() -> None:
            leases.acquire(stopped.home.lease, "p", "b")
            went_on.add(goes_on := stopped.home.uses(crafted.LINEAGE))
            if not goes_on:
                return  # it goes on from a savepoint, in another lineage
            supersede(stopped)
            stopped.home.use(crafted.LINEAGE)
            crafted.run(stopped.checkpoint, 3)
            left.update({file: file.read_bytes() for file in stopped.checkpoint.rglob("*") if file.is_file()})

        def end() -> None:
            stopped.end()
            assert {file: file.read_bytes() for file in left} == left

        return end, succeed

    assert at_each(("read", *WRITES), LocalStore, scene) > 15
    assert went_on == {True, False}


def test_what_a_reemit_restored_is_saved_with_its_first_commit(stopped: Stopped) -> None:
    lineage = replace(stopped.lineage, base_batch=2, base_commit=20, reemits=3)
    vars(stopped.run).update(_lineage=lineage, _tail=crafted.reemitted().tail())
    for request in ("aa", "bb"):
        requests.request_savepoint(stopped.home, SavepointRequest(request=request, token="a", label=None, stop=True))
        stopped.driver._serve_savepoints(stopped.run)
        service = stopped.driver._lifecycle.savepoints
        assert service is not None
        if request == "bb":
            vars(stopped.run).update(_lineage=replace(lineage, base_batch=1))  # as if batch 2 had come after
            service.committed(crafted.record(2, commit=21))
        service.close(serve=True)
    answer = requests.savepoint_answer(stopped.home, "aa")
    assert answer == SavepointAnswer(error="the driver has ended before its first commit")
    saved = requests.savepoint_answer(stopped.home, "bb")
    assert saved is not None
    assert re.fullmatch(r"21-[0-9a-f]{8}-bb", str(saved.savepoint)), saved.error


def claim(stopped: Stopped, folder: Path) -> Callable[[], object]:
    """Return what claims a Delta table."""
    return partial(opened(stopped, DeltaSink(name="s", path=str(folder / "table")), "id").claim, 1, None, 1)


def add_columns(stopped: Stopped, folder: Path) -> Callable[[], object]:
    """Return what adds a column to an Iceberg table, which takes place before the run's claim."""
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    sink = IcebergSink(name="s", table="lake.shop.events", catalog_properties=catalog, schema="evolve")
    opened(stopped, sink, "id").tasks()
    vars(stopped.run).update(number=0, _lineage=None)
    return opened(stopped, sink, "id", "more").tasks


def opened(stopped: Stopped, sink: Sink, *columns: str) -> SinkGroup:
    context = SinkContext(pipeline="p", home=stopped.home.path, stop_requested=stopped.driver._stop_requested)
    committer = sink.open(context)
    stopped.driver._lifecycle.closing.callback(committer.close)
    committer.expect_columns(StructType([StructField(name, LongType()) for name in columns]))
    return SinkGroup("p", {"s": committer})


def others_are_faster(patch: pytest.MonkeyPatch) -> None:
    def write(log: DeltaLog, *given: Any) -> None:
        other = DeltaLog(log._path, {})
        assert other.open()
        append(other, [], {}, {})
        append(log, *given)

    def add(table: IcebergTable, columns: Any) -> None:
        other = IcebergTable("lake.shop.events", table._properties)
        with closing(other):
            assert other.open()
            other.append([], {}, lambda snapshot, sequence: {})
        add_to(table, columns)

    append, add_to = DeltaLog.append, IcebergTable.add_columns
    patch.setattr(versions, "_TRIES", 1)
    patch.setattr("time.sleep", lambda _: None)
    patch.setattr(DeltaLog, "append", write)
    patch.setattr(IcebergTable, "add_columns", add)


def store_is_away(patch: pytest.MonkeyPatch) -> None:
    def refresh(_: object) -> NoReturn:
        raise ConnectionError("no answer")

    patch.setattr(DeltaLog, "refresh", refresh)
    patch.setattr(IcebergTable, "refresh", refresh)


@pytest.mark.parametrize("step", [claim, add_columns])
@pytest.mark.parametrize(
    ("happens", "asked", "ends"),
    [
        (others_are_faster, True, (0, DriverState.STOPPED)),
        (store_is_away, True, (0, DriverState.STOPPED)),
        (store_is_away, False, (1, DriverState.FAILED)),
    ],
)
def test_a_sink_that_gives_up_before_the_first_batch_when_a_stop_is_asked_for_is_no_failure(
    stopped: Stopped,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: Callable[[Stopped, Path], Callable[[], object]],
    happens: Callable[[pytest.MonkeyPatch], None],
    asked: bool,
    ends: tuple[int, DriverState],
) -> None:
    stopped.driver._lifecycle.report.tell(state=DriverState.STARTING)
    if not asked:
        (stopped.home.commands / "stop.json").unlink()
    monkeypatch.setattr(stopped.driver, "_work", step(stopped, tmp_path))
    happens(monkeypatch)
    assert (stopped.end(), stopped.state()) == ends
    assert stopped.checkpoint.exists()
