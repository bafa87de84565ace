"""The record of deaths and restarts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control import json_store, restarts
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.restarts import RecordedRestarts, Restart, RestartController
from airflow_provider_exactlyonce.control.supervision import StopSignal, Supervision
from airflow_provider_exactlyonce.policies.restart_strategy import KEPT_OUTAGES, RestartStrategy
from airflow_provider_exactlyonce.storage.local import LocalStore
from tests import frozen
from tests.clocks import StandingClock

DEATH = Restart(series="s", number=1, token="first", run=1, commit=7, cause="a signal", exit_code=-9, died=1.0)


@pytest.mark.parametrize(
    "act",
    [
        lambda path: restarts.append(path, replace(DEATH, token="second", number=2)),
        lambda path: restarts.relaunched(path, "first", 5.0),
        lambda path: restarts.withdraw(path, "first"),
    ],
)
def test_a_supervisor_that_was_frozen_does_not_forget_what_its_successor_recorded(
    tmp_path: Path, act: Callable[[Path], object]
) -> None:
    paths = (tmp_path / f"{number}.json" for number in count())

    def scene() -> tuple[Callable[[], object], Callable[[], None]]:
        path, recorded = next(paths), list[str]()
        restarts.append(path, DEATH)

        def successor() -> None:
            restarts.append(path, replace(DEATH, token="another", number=3))
            recorded.append("another")

        def frozen_supervisor() -> None:
            act(path)
            tokens = [restart.token for restart in restarts.read(path)]
            assert [token for token in tokens if token == "another"] == recorded

        return frozen_supervisor, successor

    assert frozen.at_each(frozen.ALL, LocalStore, scene) > 1


def test_what_drivers_have_committed_is_counted_beyond_the_deaths_that_are_remembered(tmp_path: Path) -> None:
    path = tmp_path / "restarts.json"
    deaths = KEPT_OUTAGES + 2
    other = replace(DEATH, series="other", token="other", rows=1000)
    ours = [
        replace(
            DEATH,
            number=number,
            token=str(number),
            rows=2,
            rows_by_sink={"Kafka": 2, f"sink {min(number, 2)}": 1},
            records=3,
            late_rows=1,
        )
        for number in range(1, deaths + 1)
    ]
    json_store.write(path, asdict(RecordedRestarts(restarts=(other, *ours[: KEPT_OUTAGES - 1]))))
    for death in ours[KEPT_OUTAGES - 1 :]:
        restarts.append(path, death)
    recorded = restarts.of_series(path, "s")
    assert [len(recorded), recorded[-1].number] == [KEPT_OUTAGES, deaths]
    assert sum(restart.rows for restart in recorded) == 2 * deaths
    assert sum(restart.records for restart in recorded) == 3 * deaths
    assert sum(restart.late_rows for restart in recorded) == deaths
    rows_by_sink = [
        sum(restart.rows_by_sink.get(sink, 0) for restart in recorded) for sink in ("Kafka", "sink 1", "sink 2")
    ]
    assert rows_by_sink == [2 * deaths, 1, deaths - 1]


class StepClock(StandingClock):
    """Its wall clock is set back by an hour at the first sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.began = self.now

    def time(self) -> float:
        return self.now if self.now == self.began else self.now - 3600


def test_a_clock_that_is_set_back_does_not_make_a_delay_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = StepClock()
    monkeypatch.setattr(restarts, "time", clock)
    home = Home(tmp_path)
    restarts.append(home.restarts, replace(DEATH, died=clock.now, due=clock.now + 10))
    supervision = Supervision(owner="d/t/r/-1", until="forever", strategy=RestartStrategy.none())
    dead = Intent(token="first", owner="d/t/r/-1", until="forever", series="s", restarts=0, log="")
    assert RestartController(home, supervision, StopSignal()).wait(dead) == 1
    assert clock.now - clock.began == pytest.approx(10, abs=0.2)
