"""The record of deaths and restarts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control import restarts
from airflow_provider_exactlyonce.control.restarts import Restart
from airflow_provider_exactlyonce.storage.local import LocalStore
from tests import frozen

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
