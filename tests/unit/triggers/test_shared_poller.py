"""One poller for all who wait at a connection, with a checker that looks at a dictionary."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.triggers import log_throttle, shared_poller
from airflow_provider_exactlyonce.triggers.polling import PollingTrigger
from airflow_provider_exactlyonce.triggers.shared_poller import Checker, CheckResult, Subject, name_of
from tests.waiting import HANG_SECONDS, eventually_in_loop

pytestmark = pytest.mark.usefixtures("clock")


class Shelf(Checker):
    """Finds what lies on the shelf; what is an exception there can't be looked at."""

    seconds = 0.05
    things: ClassVar[dict[str, Any]] = {}
    looks: ClassVar[list[set[str]]] = []
    opened: ClassVar[list[Shelf]] = []
    closed: ClassVar[list[Shelf]] = []

    def __init__(self, conn_id: str) -> None:
        super().__init__(conn_id)
        self.opened.append(self)

    def _check(self, subjects: Mapping[str, Subject], *, diagnose: bool) -> Mapping[str, CheckResult | Exception]:
        self.looks.append({subject["thing"] for subject in subjects.values()})
        return {name: self._at(subject["thing"]) for name, subject in subjects.items()}

    def _at(self, thing: str) -> CheckResult | Exception:
        lies = self.things.get(thing)
        if isinstance(lies, KeyError):
            raise lies
        if isinstance(lies, Exception):
            return lies
        return (
            CheckResult(found={"thing": thing, "is": lies}) if lies is not None else CheckResult(missing=f"no {thing}")
        )

    def _close(self) -> None:
        self.closed.append(self)


class ShelfTrigger(PollingTrigger):
    checker = Shelf


@pytest.fixture(autouse=True)
def empty_shelf() -> None:
    for kept in (Shelf.things, Shelf.looks, Shelf.opened, Shelf.closed):
        kept.clear()


def trigger(thing: str, seconds: float = HANG_SECONDS, conn_id: str = "a") -> ShelfTrigger:
    return ShelfTrigger(kafka_conn_id=conn_id, poll_interval=5, deadline=time.time() + seconds, thing=thing)


async def fired(of: PollingTrigger) -> Any:
    [event] = [event.payload async for event in of.run()]
    return event


async def looked_for(*things: str) -> None:
    await eventually_in_loop(lambda: Shelf.looks and Shelf.looks[-1] == set(things), f"a look at {things}")


def test_many_wait_with_one_checker_that_is_closed_when_the_last_one_has_left() -> None:
    async def run() -> list[Any]:
        waiting = [asyncio.create_task(fired(trigger(f"thing {number % 3}"))) for number in range(300)]
        await looked_for("thing 0", "thing 1", "thing 2")
        assert len(Shelf.opened) == 1
        Shelf.things["thing 1"] = 5
        await looked_for("thing 0", "thing 2")
        await eventually_in_loop(lambda: sum(task.done() for task in waiting) == 100, "a third has left")
        Shelf.things.update({"thing 0": 4, "thing 2": 6})
        events = await asyncio.gather(*waiting)
        await eventually_in_loop(lambda: Shelf.closed == Shelf.opened, "it is closed")
        assert not any(shared_poller._pollers.values())
        return events

    events = asyncio.run(run())
    assert [event["found"]["is"] for event in events] == [4, 5, 6] * 100


def test_each_connection_has_a_checker_of_its_own_and_a_new_one_when_it_is_waited_for_again() -> None:
    Shelf.things["x"] = 1

    async def run() -> None:
        await asyncio.gather(fired(trigger("x")), fired(trigger("x", conn_id="b")))
        await fired(trigger("x"))

    asyncio.run(run())
    assert sorted(shelf.conn_id for shelf in Shelf.opened) == ["a", "a", "b"]


def test_a_cancelled_one_leaves_the_others_waiting() -> None:
    async def run() -> Any:
        gone, stays = asyncio.create_task(fired(trigger("x"))), asyncio.create_task(fired(trigger("x")))
        await looked_for("x")
        gone.cancel()
        await eventually_in_loop(gone.cancelled, "it has gone")
        Shelf.things["x"] = 1
        return await stays

    assert asyncio.run(run())["reason"] == "found"
    assert len(Shelf.opened) == 1


def test_one_that_is_cancelled_in_the_moment_of_news_is_gone() -> None:
    async def run() -> None:
        gone = asyncio.create_task(fired(trigger("x")))
        await looked_for("x")
        [poller] = shared_poller._pollers[asyncio.get_running_loop()].values()
        [subscription] = poller.subscriptions
        await eventually_in_loop(lambda: subscription._latest is not None, "it was told")
        await asyncio.sleep(0)
        subscription.tell(CheckResult(missing="something else"))
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone

    asyncio.run(run())


def test_what_can_not_be_looked_at_concerns_its_own_only() -> None:
    Shelf.things.update({"refused": RefusedError("never"), "silent": ExactlyOnceError("no answer")})

    async def run() -> list[Any]:
        waiting = [fired(trigger(name, seconds=0.5)) for name in ("refused", "silent", "absent")]
        return await asyncio.gather(*waiting)

    assert asyncio.run(run()) == [
        {"reason": "refused", "missing": "never"},
        {"reason": "timeout", "missing": "connection a: no answer"},
        {"reason": "timeout", "missing": "no absent"},
    ]


def test_what_nobody_expects_fails_its_own_only() -> None:
    """One pipeline's connection may be missing, and hundreds of others wait at the same cluster."""
    Shelf.things["broken"] = KeyError("a defect")

    async def run() -> list[Any]:
        waiting = [fired(trigger(name, seconds=0.5)) for name in ("absent", "broken", "late")]
        return await asyncio.gather(*waiting, return_exceptions=True)

    absent, broken, late = asyncio.run(run())
    assert isinstance(broken, KeyError)
    assert [absent, late] == [{"reason": "timeout", "missing": f"no {name}"} for name in ("absent", "late")]


def test_all_that_end_at_once_share_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shelf, "seconds", 60.0)
    deadline = time.time() + 1.0

    async def run() -> list[Any]:
        waiting = [
            ShelfTrigger(kafka_conn_id="a", poll_interval=60, deadline=deadline, thing=f"{number}")
            for number in range(200)
        ]
        return await asyncio.gather(*(fired(polling) for polling in waiting))

    events = asyncio.run(run())
    assert [event["missing"] for event in events] == [f"no {number}" for number in range(200)]
    assert len(Shelf.looks) < 20, "and not one of each"


def test_connections_are_opened_again_when_nothing_can_be_looked_at() -> None:
    Shelf.things["silent"] = ExactlyOnceError("no answer")

    async def run() -> Any:
        waiting = asyncio.create_task(fired(trigger("silent")))
        await eventually_in_loop(lambda: Shelf.closed, "the connections are closed")
        Shelf.things["silent"] = 7
        return await waiting

    assert asyncio.run(run())["found"]["is"] == 7


def test_it_is_found_although_the_deadline_has_passed() -> None:
    Shelf.things["x"] = 1
    assert asyncio.run(fired(trigger("x", seconds=-5)))["reason"] == "found", "the triggerer was away meanwhile"


class Moving(Shelf):
    """Misses something else at every look."""

    def _at(self, thing: str) -> CheckResult:
        looks = len(self.looks)
        return CheckResult(found={"thing": thing}) if looks > 10 else CheckResult(missing=f"{thing}: {looks} looks")


class MovingTrigger(PollingTrigger):
    checker = Moving


def test_many_who_wait_for_what_moves_all_the_time_say_so_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A triggerer whose tasks log without end comes to a stop: its supervisor does not read while it writes."""

    async def run() -> None:
        deadline = time.time() + HANG_SECONDS
        waiting = [
            MovingTrigger(kafka_conn_id="a", poll_interval=0.2, deadline=deadline, thing=f"{number}")
            for number in range(100)
        ]
        await asyncio.gather(*(fired(polling) for polling in waiting))

    monkeypatch.setattr(log_throttle, "QUIET_SECONDS", HANG_SECONDS)
    monkeypatch.setattr(log_throttle.LogThrottle, "_lines", 0)
    began = time.monotonic()
    asyncio.run(run())
    seconds = int(time.monotonic()) - int(began) + 1
    said = re.findall(r"waiting: (\d+): ", capsys.readouterr().out)
    assert log_throttle.LINES_PER_SECOND <= len(said) <= seconds * log_throttle.LINES_PER_SECOND
    assert len(said) == len(set(said)), "nobody twice"


def test_where_each_look_costs_the_pause_has_a_least_length_which_doubles_while_nobody_answers() -> None:
    shelf, subject = Shelf("a"), {"thing": "x"}
    assert shelf.pause(0.5) == 0.5
    shelf.least_seconds = 5.0
    pauses = []
    for lies in (None, *[OSError("no answer")] * 6, 1):
        Shelf.things["x"] = lies
        shelf.check({name_of(subject): subject}, diagnose=False)
        pauses.append(shelf.pause(0.5))
    assert pauses == [5, 10, 20, 40, 80, 80, 80, 5]
    assert shelf.pause(60) == 60
