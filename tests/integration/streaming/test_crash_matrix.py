"""Twelve runs of the crash matrix: every fault, named step and shape of query; the rest is `make crash-matrix`."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.failpoints import NAMES
from tests.crash_matrix.cases import Case, Fault
from tests.crash_matrix.lane import Result, run_lanes
from tests.crash_matrix.shapes import NO_DATA, SHAPES, STATELESS, UPDATE, WINDOWED

WORLDS = {
    STATELESS: (
        ("during-send", Fault.WORKER),
        ("after-end-transaction", Fault.BROKER),
        ("after-pre-commit", Fault.DRIVER),
    ),
    WINDOWED: (("after-pre-commit", Fault.FREEZE), ("after-begin", Fault.WORKER), ("during-send", Fault.DRIVER)),
    UPDATE: (("during-send", Fault.FREEZE), ("after-begin", Fault.BROKER), ("after-end-transaction", Fault.DRIVER)),
    NO_DATA: (("after-claim", Fault.WORKER), ("during-send", Fault.BROKER), ("after-commit", Fault.DRIVER)),
}


@pytest.mark.timeout(3600)
def test_twelve_faults_at_named_steps_lose_and_double_nothing(tmp_path: Path, spark_classes: None) -> None:
    worlds = [
        [
            Case(index=100 * n + i, seed=n + i, shape=shape, point=point, fault=fault)
            for i, (point, fault) in enumerate(of)
        ]
        for n, (shape, of) in enumerate(WORLDS.items())
    ]
    planned = [case for world in worlds for case in world]
    assert len(planned) == 12
    assert {case.shape for case in planned} == set(SHAPES)
    assert {case.point for case in planned} == set(NAMES)
    assert {case.fault for case in planned} == set(Fault)
    results: list[Result] = []
    run_lanes(["one", "two"], tmp_path, worlds, results.append)
    assert [result for result in results if result.verdict != "recovered"] == []
    assert sorted(result.index for result in results) == sorted(case.index for case in planned)
    held = [result.held_seconds for result in results if result.held_seconds is not None]
    assert held, "at least one driver died with an open transaction that would have outlived it"
