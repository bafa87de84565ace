"""Operators with a home in a bucket, reached with a connection; drivers are real processes, the store a real server."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import json_store, processes
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control import status as statuses
from airflow_provider_exactlyonce.control.driver_output import DriverOutput
from airflow_provider_exactlyonce.control.exit_classification import log_tail
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import DriverFailedError, RefusedError
from airflow_provider_exactlyonce.hooks import object_storage
from airflow_provider_exactlyonce.hooks.home import home_at
from airflow_provider_exactlyonce.links.pipeline import STATUS_KEY
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
from airflow_provider_exactlyonce.storage import conditional, remote, s3
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.triggers.home_checker import HomeChecker
from airflow_provider_exactlyonce.triggers.shared_poller import CheckResult, name_of
from tests import azurite, object_stores
from tests.clocks import AheadClock
from tests.integration.control.contract_driver import let_go
from tests.integration.operators.test_streaming import calls as calls
from tests.integration.operators.test_streaming import execute, operator
from tests.integration.operators.test_streaming_deferred import deferred, first_event, leave, trigger_of
from tests.object_stores import Faults
from tests.task_state import TaskInstance
from tests.waiting import HANG_SECONDS, eventually

Calls = Callable[[], list[dict[str, Any]]]

# The clients of object stores have deprecations of their own.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("calls")]
LINES = logging.getLogger("airflow_provider_exactlyonce")


@dataclass(frozen=True)
class Server:
    """A store in which homes are, and what Airflow knows of it.

    :param root: of the homes' URLs, with the connection's name
    """

    root: str
    address: str
    connection: Callable[[str], dict[str, Any]]


SERVERS: Final = {
    "moto": ("s3", object_stores.moto, object_stores.connection),
    "gcs": ("gs", object_stores.gcs, object_stores.gcs_connection),
    "azure": ("abfss", object_stores.azure, azurite.connection),
}
everywhere = pytest.mark.parametrize(
    "server", ["moto", *(pytest.param(name, marks=pytest.mark.cluster) for name in ("gcs", "azure"))], indirect=True
)


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    scheme, run, connection = SERVERS[getattr(request, "param", "moto")]
    with run() as address:
        yield Server(f"{scheme}://lake@bucket/pipelines", address, connection)


@pytest.fixture
def store(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """Give what stands between everybody and the store; watchers look often, and writes are repeated at once."""
    monkeypatch.setattr(remote.RemoteStore, "seconds_per_read", 0.05)
    monkeypatch.setattr(conditional, "PAUSES", (0.0, 0.0, 0.1))
    monkeypatch.setattr(s3, "_ATTEMPTS", 1)
    with object_stores.proxy(server.address) as faults:
        yield faults


@pytest.fixture
def checkpoint(server: Server, store: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give a new home's URL; this process itself has no key to it."""
    own = {*object_stores.gcs_environment(""), *azurite.environment("")}
    for name in [name for name in os.environ if name.startswith("AWS_") or name in own]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(server.connection(store.address)))
    return f"{server.root}/{uuid.uuid4()}"


def connect(monkeypatch: pytest.MonkeyPatch, address: str, **extra: Any) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(object_stores.connection(address, **extra)))


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Return what was logged so far."""
    monkeypatch.setattr(LINES, "propagate", True)
    caplog.set_level(logging.INFO)
    return lambda: caplog.text


def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Be another host from now on, which shares no directory with the one before."""
    monkeypatch.setattr(process_identity, "this_machine", lambda: "another boot of another host")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))


@contextmanager
def breaking(break_it: Callable[[], None], store: Faults, home: Home) -> Iterator[None]:
    """Break something while a task works, whose driver goes on afterwards: else the task would wait for ever."""

    def work() -> None:
        try:
            break_it()
        finally:
            store.is_down = False
            let_go(home)

    with ThreadPoolExecutor(1) as pool:
        broken = pool.submit(work)
        yield
        broken.result()


@pytest.mark.slow
def test_a_driver_is_supervised_over_its_restarts_and_the_key_is_in_its_environment_only(
    checkpoint: str, tmp_path: Path, request: pytest.FixtureRequest, said: Callable[[], str]
) -> None:
    calls: Calls = request.getfixturevalue("calls")
    plans = ("take-lease commit commit sleep=0.2 die", "take-lease commit end=finished")
    task, ti = operator(tmp_path, *plans, checkpoint=checkpoint), TaskInstance()
    result = execute(task, ti)
    assert (result["run"], result["commit"], result["rows"], result["restarts"]) == (2, 3, 300, 1)
    assert leases.read(home_at(checkpoint).lease) is None
    for call in calls():
        assert checkpoint.replace("lake@", "") in call["arguments"]
        assert object_stores.SECRET not in " ".join(call["arguments"])
        assert call["environment"]["AWS_SECRET_ACCESS_KEY"] == object_stores.SECRET
    shown = [json.dumps([ti.pushed, result, task.checkpoint], default=str), said()]
    shown += [log.read_text() for log in home_at(checkpoint).logs.iterdir()]
    assert not any(object_stores.SECRET in text for text in shown)


@everywhere
def test_it_defers_with_the_connection_s_name_and_comes_back_to_the_result(checkpoint: str, tmp_path: Path) -> None:
    task = deferred(tmp_path, "take-lease commit go end=finished", checkpoint=checkpoint)
    deferral = leave(task)
    _, arguments = deferral.trigger.serialize()
    assert arguments["home"] == checkpoint
    assert object_stores.SECRET not in json.dumps(arguments)
    let_go(home_at(checkpoint))
    event = asyncio.run(first_event(trigger_of(deferral)))
    assert task.resume_from_trigger({"ti": TaskInstance()}, event)["commit"] == 1  # type: ignore[typeddict-item]


@everywhere
def test_the_next_try_on_a_host_that_shares_no_directory_takes_the_driver_over_and_rides_out_an_outage(
    checkpoint: str,
    tmp_path: Path,
    store: Faults,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    said: Callable[[], str],
) -> None:
    calls: Calls = request.getfixturevalue("calls")
    leave(deferred(tmp_path, "take-lease commit go end=finished", checkpoint=checkpoint))
    here, ti, clock = home_at(checkpoint), TaskInstance(), AheadClock()
    elsewhere(monkeypatch, tmp_path)
    monkeypatch.setattr(leases, "time", clock)

    def break_it() -> None:
        eventually(lambda: STATUS_KEY in ti.pushed, lambda: f"nobody watches the driver: {said()}")
        store.is_down = True
        eventually(lambda: f"{checkpoint} does not answer, and the driver is left as it is" in said(), said)
        clock.ahead += 300
        store.seen.clear()
        eventually(lambda: len(store.seen) > 3, lambda: str(store.seen))
        store.is_down = False
        eventually(lambda: f"{checkpoint} answers again, after" in said(), said)

    with breaking(break_it, store, here):
        result = execute(operator(tmp_path, "exit=1", checkpoint=checkpoint), ti)
    assert "taking over the living driver" in said()
    assert (result["run"], result["commit"]) == (1, 1)
    assert len(calls()) == 1, "one driver was started"


@everywhere
def test_a_driver_that_dies_while_the_store_is_down_is_followed_by_one_when_it_answers(
    checkpoint: str, tmp_path: Path, store: Faults, request: pytest.FixtureRequest, said: Callable[[], str]
) -> None:
    calls: Calls = request.getfixturevalue("calls")
    home = home_at(checkpoint)

    def break_it() -> None:
        eventually(lambda: (status := statuses.read(home.status)) is not None and status.commit == 1, said)
        store.is_down = True
        let_go(home)
        eventually(lambda: said().count(f"{checkpoint} does not answer: ") >= 2, said)
        assert len(calls()) == 1, "nothing is started while nobody knows what became of the driver"

    plans = ("take-lease commit go die", "take-lease commit end=finished")
    with breaking(break_it, store, home):
        result = execute(operator(tmp_path, *plans, checkpoint=checkpoint))
    assert (result["run"], result["commit"], result["restarts"]) == (2, 2, 1)
    assert len(calls()) == 2


@everywhere
def test_a_triggerer_rides_out_an_outage(
    checkpoint: str, tmp_path: Path, store: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    deferral = leave(deferred(tmp_path, "take-lease commit go end=finished", checkpoint=checkpoint))
    home, clock = home_at(checkpoint), AheadClock()
    monkeypatch.setattr(leases, "time", clock)

    async def requests() -> None:
        store.seen.clear()
        await asyncio.wait_for(_more(lambda: len(store.seen)), HANG_SECONDS)

    async def watch() -> None:
        watching = asyncio.create_task(first_event(trigger_of(deferral)))
        await requests()
        store.is_down = True
        await requests()  # so that no look still has an answer, and then the later time
        clock.ahead += 300
        await requests()
        store.is_down = False
        await requests()
        assert not watching.done()
        let_go(home)
        await asyncio.wait_for(watching, HANG_SECONDS)

    asyncio.run(watch())


async def _more(count: Callable[[], int]) -> None:
    while count() < 4:
        await asyncio.sleep(0.05)


@pytest.mark.slow
def test_a_store_that_is_slow_throttles_and_loses_answers_starts_no_driver_twice(
    checkpoint: str, tmp_path: Path, store: Faults, request: pytest.FixtureRequest
) -> None:
    calls: Calls = request.getfixturevalue("calls")
    store.seconds = 0.05
    store.plan("PUT", *["", "lose", "", "503", "", "", "drop"] * 6)
    store.plan("GET", *["", "", "", "", "503", "", "", "drop", "", "", "lose"] * 6)
    plans = ("take-lease commit commit sleep=0.2 die", "take-lease commit end=finished")
    result = execute(operator(tmp_path, *plans, checkpoint=checkpoint))
    assert (result["run"], result["commit"], result["rows"], result["restarts"]) == (2, 3, 300, 1)
    assert len(calls()) == 2


def test_who_waits_for_a_home_reads_its_lease_once_a_look_and_the_account_now_and_then(
    checkpoint: str, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    deferral = leave(deferred(tmp_path, "take-lease commit go end=finished", checkpoint=checkpoint))
    monkeypatch.setattr(s3.S3Store, "seconds_per_read", 1000.0)
    intent = deferral.trigger.serialize()[1]["intent"]
    watched = {"intent": intent, "no_commit_within": 3600.0}
    stopped = {"token": intent["token"], "request": None, "commits": None}
    with object_stores.proxy(server.address) as own:  # the driver has another way
        connect(monkeypatch, own.address)
        checker = HomeChecker(checkpoint)
        looks = []
        for _ in range(4):
            looks.append(checker.check({name_of(subject): subject for subject in (watched, stopped)}, diagnose=False))
            own.seen, seen = [], own.seen
            assert set(seen) == {"GET"}
        results = [result for look in looks for result in look.values()]
        assert all(isinstance(result, CheckResult) and result.found is None for result in results)
        assert len(seen) == 1, "one read for both who wait"
        let_go(home_at(checkpoint))
        eventually(lambda: not processes.members(intent["token"]), "it has ended")
        last = checker.check({name_of(watched): watched}, diagnose=False)
        assert list(last.values()) == [CheckResult(found={"why": "the driver has ended"})]


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("s3://AKIA:hunter2@bucket/shop", "has a password in it"),
        ("s3://AKIA:hunter2@[bucket/shop", "is no URL"),
        ("hdfs://lake@bucket/shop", "a connection opens s3://"),
        ("s3://@bucket/shop", "a connection opens s3://"),
        ("s3://lake@bucket", "names no directory"),
    ],
)
def test_what_names_no_home_is_refused_when_the_dag_is_parsed_and_no_secret_is_shown(
    tmp_path: Path, location: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        operator(tmp_path, "exit=1", checkpoint=location)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(RefusedError, match=message):
        home_at(location)


def test_nobody_is_asked_when_a_dag_is_parsed(tmp_path: Path) -> None:
    operator(tmp_path, "exit=1", checkpoint="s3://no_such_connection@bucket/shop")
    operator(tmp_path, "exit=1", checkpoint="s3://{{ var.value.lake }}@bucket/shop")


def test_a_connection_that_is_not_there_is_no_anonymous_access(tmp_path: Path) -> None:
    from airflow.sdk.exceptions import AirflowNotFoundException

    with pytest.raises(AirflowNotFoundException, match="no_such_connection"):
        home_at("s3://no_such_connection@bucket/shop")


def test_a_role_is_assumed_and_its_credentials_are_handed_on(
    checkpoint: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[[], str]
) -> None:
    sts = {"sts": {"endpoint_url": server.address}}
    role = {"role_arn": "arn:aws:iam::123456789012:role/streams", "service_config": sts}
    connect(monkeypatch, server.address, **role)
    home = home_at(checkpoint)
    json_store.write(home.control / "a.json", {"written": True})
    assert json_store.read(home.control / "a.json") == {"written": True}
    environment = object_storage.driver_environment(checkpoint, tmp_path)
    assert str(environment["AWS_ACCESS_KEY_ID"]).startswith("ASIA")
    assert environment["AWS_SESSION_TOKEN"]
    assert "connection lake assumes arn:aws:iam::123456789012:role/streams" in said()


def test_what_a_driver_printed_is_shown_by_a_host_that_shares_no_directory(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = RestartStrategy.none()
    with pytest.raises(DriverFailedError):
        execute(operator(tmp_path, "print=the_cause exit=1", checkpoint=checkpoint, restart_strategy=never))
    home = home_at(checkpoint)
    [log] = home.logs.iterdir()
    elsewhere(monkeypatch, tmp_path)
    log.unlink()
    assert home.kept_logs is not None
    [name] = store_of(home.path).names(home.kept_logs)
    token = name.removeprefix("driver-").removesuffix(".log")
    assert "the cause" in log_tail(DriverOutput(home_at(checkpoint), token, log))


def test_a_home_elsewhere_keeps_what_its_processes_write_on_their_host(tmp_path: Path, checkpoint: str) -> None:
    home = home_at(checkpoint)
    assert home.here.is_relative_to(tmp_path / "state")
    assert home.here == Home(str(home.path)).here, "the driver's half finds the same"
