"""A standby takes over from a driver that is lost, and from no other."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control import processes, restarts, standbys
from airflow_provider_exactlyonce.control import status as statuses
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.supervision import Supervision
from airflow_provider_exactlyonce.control.supervisor import Supervisor
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, BadRecordError
from airflow_provider_exactlyonce.ledger.records import ledger_topic
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
from tests.integration.streaming.driver.test_driver import send
from tests.integration.streaming.harness import Driver, World, check_counts, open_transactions
from tests.integration.streaming.test_crashes import STEPS
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]  # some JVMs side by side


def stand_by(world: World, **how: object) -> Driver:
    """Start a standby, and return when it is ready."""
    driver = world.start("--standby", "warm", own_jvm=True, **how)

    def ready() -> bool:
        assert driver.process.poll() is None, driver.output()[-3000:]
        return "standby: ready" in driver.output()

    eventually(ready, "the standby is ready")
    assert "rehearsal failed" not in driver.output()
    return driver


def kill(driver: Driver) -> float:
    """Kill a driver's JVM and Python at once; returns when, in seconds since the epoch."""
    killed = time.time()
    os.killpg(driver.process.pid, signal.SIGKILL)
    driver.wait()
    return killed


def tell(world: World, killed: float, run: int) -> None:
    """Print how long a take-over has taken, which no test depends on."""
    commits, runs = world.ledger()
    claimed = next(claim.claimed for claim in runs if claim.run == run) / 1000 - killed
    committed = min((commit.committed for commit in commits if commit.run == run), default=None)
    until = "no commit" if committed is None else f"its first commit {committed / 1000 - killed:.2f} s"
    print(f"take-over of run {run}: claim {claimed:.2f} s, {until} after the death")


def memory(pid: int) -> dict[str, int]:
    """Return the megabytes of memory that each process of a driver's session has of its own, or shares by its part."""
    sizes = {}
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):  # one that ends meanwhile
            if os.getsid(process.pid) == pid:
                sizes[process.name()] = process.memory_full_info().pss // 2**20
    return sizes


def runs_of(world: World) -> list[int]:
    return [claim.run for claim in world.ledger()[1]]


def test_a_standby_takes_over_at_every_step_of_the_protocol_and_nothing_is_lost_or_doubled(
    world: World, tmp_path: Path
) -> None:
    world.send(3000)
    at = {step: tmp_path / step for step in STEPS}
    armed = [f"{failpoint}:hold={at[step]}" for step, failpoint in STEPS.items()]
    driver = world.start(failpoints=armed[0], own_jvm=True)
    killed = 0.0
    for number, step in enumerate(STEPS, start=1):
        eventually(at[step].exists, f"run {number} is at {step}")
        if number > 1:
            tell(world, killed, number)
        standby = stand_by(world, failpoints=armed[number] if number < len(armed) else None)
        if number == 1:
            print(f"memory of a standby, MB: {memory(standby.process.pid)}")
        assert runs_of(world)[-1] == number, "a standby claims nothing while the driver lives"
        killed = kill(driver)
        driver = standby
    assert driver.wait() == 0, driver.output()[-3000:]
    assert "standby: takes over" in driver.output()
    tell(world, killed, len(STEPS) + 1)
    assert runs_of(world) == list(range(1, len(STEPS) + 2))
    assert standbys.waiting(Home(world.home)) is None
    check_counts(world)
    for topic in (world.sink, ledger_topic(world.pipeline)):
        assert open_transactions(world.config, topic) == {}


def test_a_driver_that_is_frozen_lives_and_a_stop_ends_its_standby_too(world: World) -> None:
    world.send(400)
    driver = world.start(until="forever", own_jvm=True)
    eventually(lambda: world.commits() >= 1, "the driver commits")
    standby = stand_by(world, until="forever")
    driver.freeze(world.home)
    eventually(lambda: "gives no sign of life and has not ended" in standby.output(), "the standby notices")
    assert standby.process.poll() is None
    assert runs_of(world) == [1]
    driver.thaw()
    before = world.commits()
    world.send(400)
    eventually(lambda: world.commits() > before, "the driver goes on")
    assert (driver.process.poll(), standby.process.poll(), runs_of(world)) == (None, None, [1])
    assert world.stop(driver) == 0, driver.output()[-3000:]
    assert standby.wait() == 0, standby.output()[-3000:]
    assert "the driver that it stood by for was asked to stop" in standby.output()
    assert runs_of(world) == [1]
    check_counts(world)


def test_a_pipeline_has_one_standby_whose_death_costs_nothing(world: World) -> None:
    world.send(400)
    driver = world.start(until="forever", own_jvm=True)
    eventually(lambda: world.commits() >= 1, "the driver commits")
    kill(stand_by(world, until="forever"))
    world.send(400)
    eventually(lambda: world.commits() >= 2, "the driver goes on")
    standby = stand_by(world, until="forever")
    second = world.start("--standby", "warm", until="forever")
    assert second.wait() == AlreadyRunningError.exit_code, second.output()[-3000:]
    assert f"waits already: pid {standbys.waiting(Home(world.home)).pid}" in second.output()  # type: ignore[union-attr]
    kill(standby)
    kill(driver)
    assert leases.look(Home(world.home).lease)[1] is leases.Liveness.DEAD
    world.send(400)
    alone = world.start("--standby", "warm")
    assert alone.wait() == 0, alone.output()[-3000:]
    assert "standby" not in alone.output(), "nobody holds the pipeline: it is the driver"
    assert runs_of(world) == [1, 2]
    check_counts(world)


def test_a_standby_does_not_try_again_what_would_fail_again(world: World) -> None:
    world.send(400)
    driver = world.start(until="forever", own_jvm=True)
    eventually(lambda: world.commits() >= 1, "the driver commits")
    standby = stand_by(world, until="forever")
    send(world.config, world.source, [(b"k1", b'{"id": 1, "k": "k1", "v": "dear"}')])
    assert driver.wait() == standby.wait() == BadRecordError.exit_code, standby.output()[-3000:]
    assert runs_of(world) == [1]
    assert open_transactions(world.config, world.sink) == {}


def test_a_supervisor_starts_its_standby_as_the_next_driver_and_counts_the_restart(world: World) -> None:
    world.send(400)
    home = Home(world.home)
    command, environment = world.command(until="forever")
    supervisor = Supervisor(
        home,
        Launch(command=command, printable="", environment=environment),
        Supervision(
            owner="test",
            until="forever",
            strategy=RestartStrategy.fixed_delay(attempts=2, delay=timedelta(0)),
            standby=True,
        ),
    )
    raised: list[BaseException] = []

    def supervise() -> None:
        try:
            for _ in supervisor.run():
                pass
        except BaseException as error:
            raised.append(error)

    def waiting(but: str) -> leases.Lease | None:
        held = standbys.waiting(home)
        return held if held is not None and held.token != but else None

    thread = threading.Thread(target=supervise)
    thread.start()
    try:
        eventually(lambda: waiting(but=""), "the standby is ready")
        first, standby = statuses.read(home.status), standbys.waiting(home)
        assert first is not None
        assert standby is not None
        killed = time.time()
        for pid in processes.members(first.token):
            os.kill(pid, signal.SIGKILL)
        world.send(400)
        eventually(lambda: world.commits() >= 2, "the standby commits")
        tell(world, killed, 2)
        second = statuses.read(home.status)
        assert second is not None
        assert second.token == standby.token == world.ledger()[1][-1].token
        eventually(lambda: waiting(but=standby.token), "the next standby is ready")
        [restart] = restarts.read(home.restarts)
        assert (restart.token, restart.number, restart.relaunched is not None) == (first.token, 1, True)
        last = standbys.waiting(home)
        assert last is not None
    finally:
        supervisor.stop("test")
        thread.join()
    assert "StopRequestedError" in repr(raised)
    assert not [pid for token in (first.token, second.token, last.token) for pid in processes.members(token)]
    assert runs_of(world) == [1, 2]
    check_counts(world)
