"""What is asked of a home in a bucket while nothing happens, against the table of docs/homes.md: requests are paid."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.checkpoint.savepoints import SavepointRetention
from airflow_provider_exactlyonce.control import driver_watch, standbys
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.driver_locator import DriverAttachment
from airflow_provider_exactlyonce.control.driver_watch import DriverWatch
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.processes import FoundDriver
from airflow_provider_exactlyonce.control.status import DriverState
from airflow_provider_exactlyonce.control.supervision import StopSignal, Supervision
from airflow_provider_exactlyonce.exceptions import StopRequestedError, required
from airflow_provider_exactlyonce.hooks import metrics
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
from airflow_provider_exactlyonce.sensors.commit_gate import CommitGateSensor
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions
from airflow_provider_exactlyonce.streaming.commit.sink_group import SinkGroup
from airflow_provider_exactlyonce.streaming.driver import heartbeat, savepoint_service, stop_reasons
from airflow_provider_exactlyonce.streaming.driver.heartbeat import Heartbeat
from airflow_provider_exactlyonce.streaming.driver.options import DriverOptions
from airflow_provider_exactlyonce.streaming.driver.savepoint_service import SavepointService
from airflow_provider_exactlyonce.streaming.driver.status_reporter import DriverReport
from airflow_provider_exactlyonce.streaming.driver.stop_reasons import StopReasons
from airflow_provider_exactlyonce.triggers.commit_gate import TARGETS, CommitGateTrigger
from airflow_provider_exactlyonce.triggers.pipeline import PipelineTrigger
from tests import object_stores
from tests.clocks import StandingClock
from tests.integration.ledger.crafted import CraftedPipeline, rows_of
from tests.object_stores import Faults
from tests.task_state import Store, context
from tests.virtual_time import standing_time
from tests.waiting import HANG_SECONDS

# The clients of object stores have deprecations of their own.
pytestmark = pytest.mark.filterwarnings("default")

TOKEN: Final = "token"
PAGE: Final = Path(__file__).parents[3] / "docs" / "homes.md"
#: What S3 takes for a request: to write or list, and to read.
PRICES: Final = (0.005 / 1000, 0.0004 / 1000)
MINUTES_OF_A_MONTH: Final = 30 * 24 * 60


class Row(NamedTuple):
    """One of the table: requests a minute, of a part of a commit once, and dollars a month."""

    writes: float
    reads: float
    dollars: float | None


def table() -> Mapping[str, Row]:
    """Read the page's table."""
    _, _, below = PAGE.read_text().partition("| who | PUT, LIST |")
    lines = below.partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {
        who: Row(_a_minute(writes), _a_minute(reads), float(dollars.removeprefix("$")) if dollars else None)
        for who, writes, reads, dollars in rows
    }


def _a_minute(cell: str) -> float:
    number, _, unit = cell.partition(" ")
    return float(number) * {"a second": 60, "a minute": 1, "": 1}[unit]


class Pauses:
    """Stands for ``time`` and for ``threading`` in what looks again and again: a thread's time passes in its pauses.

    :param until: every event is set then, in the seconds of whoever waits for it
    """

    Thread, Lock = threading.Thread, threading.Lock

    def __init__(self, until: float) -> None:
        self._until = until
        self._began = time.time()
        self._of_thread = threading.local()

    @property
    def is_over(self) -> bool:
        return self.monotonic() >= self._until

    def monotonic(self) -> float:
        return float(getattr(self._of_thread, "now", 0.0))

    def time(self) -> float:
        return self._began + self.monotonic()

    def sleep(self, seconds: float) -> None:
        self._of_thread.now = self.monotonic() + seconds

    def Event(self) -> Any:  # noqa: N802
        def wait(seconds: float) -> bool:
            self.sleep(seconds)
            return self.is_over

        def nothing() -> None: ...

        return SimpleNamespace(wait=wait, set=nothing, clear=nothing, is_set=lambda: False)


@pytest.fixture
def counted(moto: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """Give a way to a store on which requests are noted; the environment names it."""
    with object_stores.proxy(moto) as between:
        for name, value in object_stores.environment(between.address).items():
            monkeypatch.setenv(name, value)
        yield between


@pytest.fixture
def run(counted: Faults, kafka_config: dict[str, str], make_topic: Callable[..., str]) -> Iterator[Run]:
    """Give the claim of a driver, this process, that runs a pipeline with its home there."""
    topic = make_topic(partitions=1)
    options = RunOptions(config=kafka_config, token=TOKEN, version="v", transaction_timeout_milliseconds=60_000)
    run = Run(Home(f"s3://bucket/{uuid.uuid4()}"), topic, options)
    run.start()
    report = DriverReport(run.home, TOKEN, run.pipeline)
    report.own()
    report.tell(state=DriverState.RUNNING, run=run.number, lag=0, progressed=time.time(), committed=time.time())
    yield run
    run.close()


@pytest.fixture
def intent(run: Run) -> Intent:
    intent = Intent(
        token=TOKEN,
        owner="dag/task/run/-1",
        until="forever",
        series=TOKEN,
        restarts=0,
        log="",
        host="here",
        machine=process_identity.this_machine(),
        pid=os.getpid(),
        process_started=required(process_identity.process_start(os.getpid()), "this process runs"),
    )
    intents.write(run.home.intent, intent)
    return intent


def check_cost(who: str, counted: Faults, idle: Callable[[float], None]) -> None:
    """Compare with the table what is asked in five minutes, without what is asked at the beginning.

    :param idle: does for so many seconds, of its own time, what the one does who is in that row
    """
    writes, reads = [], []
    for minutes in (1, 6):
        counted.requests.clear()
        idle(60.0 * minutes)
        asked = Counter(
            "write" if request.startswith(("PUT", "POST")) or "list-type" in request else request.split()[0]
            for request in counted.requests
        )
        writes.append(asked["write"])
        reads.append(asked["GET"] + asked["HEAD"])
    row = table()[who]
    a_minute = ((writes[1] - writes[0]) / 5, (reads[1] - reads[0]) / 5)
    assert (round(a_minute[0]), round(a_minute[1])) == (row.writes, row.reads), a_minute


def test_the_tables_sums_and_prices_are_right() -> None:
    rows = table()
    python, spark, partition = [row for row in rows.values() if row.dollars is None]
    idle, each_second = rows["a driver that idles"], "a driver that commits each second, with two state partitions"
    of_a_commit = (
        python.writes + spark.writes + 2 * partition.writes,
        python.reads + spark.reads + 2 * partition.reads,
    )
    assert rows[each_second][:2] == tuple(60 * requests for requests in of_a_commit)
    assert rows["the same, each ten seconds"][:2] == tuple(6 * requests for requests in of_a_commit)
    for who, row in rows.items():
        if row.dollars is not None:
            idles = idle if who in (each_second, "the same, each ten seconds") else Row(0, 0, None)
            writes, reads = row.writes + idles.writes, row.reads + idles.reads
            dollars = MINUTES_OF_A_MONTH * (writes * PRICES[0] + reads * PRICES[1])
            digits = 2 if dollars < 10 else 0
            assert row.dollars == round(dollars, digits), who


def test_an_idle_driver_asks_what_the_table_says(
    run: Run, counted: Faults, make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Python: in two minutes in which it had nothing to do Spark asked nothing."""
    topic = make_topic(partitions=1)

    def idle(seconds: float) -> None:
        pauses = Pauses(seconds)
        for module in (heartbeat, savepoint_service):
            monkeypatch.setattr(module, "threading", pauses)
        monkeypatch.setattr(stop_reasons, "time", pauses)
        options = DriverOptions(home=run.home, config={}, token=TOKEN)
        report = DriverReport(run.home, TOKEN, run.pipeline)
        report.own()
        report.tell(state=DriverState.RUNNING, run=run.number)
        beats = Heartbeat(run, report, lambda: [topic], SinkGroup(run.pipeline, {}))
        serving = SavepointService(
            run.home, run.lineage.id, TOKEN, retention=SavepointRetention(), batch_of=lambda record: record.batch
        )
        stop = StopReasons(options, report)
        stop.ask(serving.stop_reason)
        beats.start()
        serving.start(None)
        while not pauses.is_over:
            assert stop.reason() is None
            pauses.sleep(0.5)
        for thread in (*beats._threads, serving._thread):
            thread.join(HANG_SECONDS)
            assert not thread.is_alive()

    check_cost("a driver that idles", counted, idle)


def test_a_deferred_supervisor_asks_what_the_table_says(
    intent: Intent, run: Run, counted: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "stale_seconds", lambda _: float("inf"))  # the driver's own time stands still

    def idle(seconds: float) -> None:
        async def watch() -> list[Any]:
            deadline = time.time() + seconds
            trigger = PipelineTrigger(
                home=run.home.location, intent=asdict(intent), owner=intent.owner, poll_interval=1, deadline=deadline
            )
            return [event.payload async for event in trigger.run()]

        with standing_time(StandingClock(time.time())):
            assert len(asyncio.run(watch())) == 1

    check_cost("a deferred supervisor", counted, idle)


def test_a_supervisor_in_a_worker_asks_what_the_table_says(
    intent: Intent, run: Run, counted: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "stale_seconds", lambda _: float("inf"))  # the driver's own time stands still

    def idle(seconds: float) -> None:
        pauses, stop = Pauses(seconds), StopSignal()
        for module in (driver_watch, metrics):
            monkeypatch.setattr(module, "time", pauses)
        monkeypatch.setattr(metrics, "threading", pauses)

        def on_poll() -> None:
            stop.reason = "the time is over" if pauses.is_over else None

        supervision = Supervision(
            owner="another", until="forever", strategy=RestartStrategy.none(), poll_seconds=1, on_poll=on_poll
        )
        driver = FoundDriver(TOKEN, os.getpid(), intent.process_started)
        attached = DriverAttachment(driver=driver, intent=intent, ours=False)
        watch = DriverWatch(run.home, supervision, attached, stop, lambda _: None)
        with pytest.raises(StopRequestedError, match="the time is over"), metrics.reporting(run.home):
            list(watch.until_its_end())

    check_cost("a supervisor in a worker", counted, idle)


def test_a_standby_asks_what_the_table_says(run: Run, counted: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    def idle(seconds: float) -> None:
        pauses, token = Pauses(seconds), str(uuid.uuid4())
        monkeypatch.setattr(leases, "threading", pauses)
        for module in (standbys, stop_reasons):
            monkeypatch.setattr(module, "time", pauses)
        options = DriverOptions(home=run.home, config={}, token=token)
        stop = StopReasons(options, DriverReport(run.home, token, run.pipeline))

        def check_wanted() -> None:
            if pauses.is_over or stop.reason():
                raise StopRequestedError("the time is over")

        turn = standbys.turn_of(run.home, token, None)
        assert standbys.keeps_waiting(turn)
        with (
            pytest.raises(StopRequestedError, match="the time is over"),
            leases.holding(run.home.standby, run.pipeline, token),
        ):
            standbys.await_turn(run.home, turn, check_wanted)

    check_cost("a standby", counted, idle)


def test_gates_ask_no_home(
    counted: Faults, kafka_config: dict[str, str], make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert table()["500 gates"] == Row(0, 0, 0)
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": kafka_config}))
    sink = make_topic(partitions=2)
    with CraftedPipeline(kafka_config, sink, sink) as committed:
        committed.claim(home_path=f"s3://bucket/{uuid.uuid4()}")
        for batch in (1, 2):
            committed.commit(rows_of(batch))
        committed.settle()
    counted.is_down = True
    gate: dict[str, Any] = {"pipeline": sink, "kafka_conn_id": "kafka_default"}
    opened = CommitGateSensor(task_id="gate", commit=2, **gate).execute(context(Store()))
    assert opened["commit"] == 2

    async def wait() -> list[Any]:
        async def fired(commit: int) -> Any:
            targets: dict[str, Any] = {**gate, **dict.fromkeys(TARGETS), "commit": commit}
            trigger = CommitGateTrigger(**targets, poll_interval=0.1, deadline=time.time() + HANG_SECONDS)
            return [event.payload async for event in trigger.run()]

        waiting = asyncio.create_task(fired(3))
        seen = [*await asyncio.gather(fired(1), fired(2))]
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return seen

    assert [event["found"]["commit"] for [event] in asyncio.run(wait())] == [2, 2]
    assert counted.requests == []
