"""Runs of the crash matrix with Spark; all of it is `make crash-matrix`.

`make test` has two of them, `make test-all` twelve, in which every fault, named step and shape of query occurs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.failpoints import NAMES
from tests.crash_matrix.cases import POINTS_WITH_TABLE, Case, Fault
from tests.crash_matrix.lane import Result, run_lanes
from tests.crash_matrix.pipeline import Pipeline
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


#: One after the other on one pipeline, which costs one broker.
TWO = {WINDOWED: (("during-send", Fault.DRIVER), ("after-end-transaction", Fault.BROKER))}


#: Each step of a table beside the topic, and each fault.
WITH_TABLE: Mapping[str, Mapping[str, Sequence[tuple[str, Fault]]]] = {
    "delta": {
        STATELESS: (
            ("after-sink-claim", Fault.DRIVER),
            ("after-sink-pre-commit", Fault.DRIVER),
            ("before-sink-decision", Fault.BROKER),
            ("after-sink-commit", Fault.FREEZE),
        ),
        UPDATE: (
            ("after-sink-fence", Fault.DRIVER),
            ("before-sink-decision", Fault.DRIVER),
            ("after-sink-pre-commit", Fault.WORKER),
        ),
    },
    "iceberg": {
        WINDOWED: (
            ("after-sink-fence", Fault.DRIVER),
            ("before-sink-decision", Fault.DRIVER),
            ("after-sink-pre-commit", Fault.FREEZE),
        ),
        UPDATE: (
            ("after-sink-claim", Fault.BROKER),
            ("after-sink-pre-commit", Fault.DRIVER),
            ("after-sink-commit", Fault.DRIVER),
        ),
    },
}


def run(worlds: Mapping[str, Sequence[tuple[str, Fault]]], folder: Path, beside: str | None = None) -> list[Case]:
    """Run worlds and check that each case has recovered; returns the cases.

    :param beside: the kind of the table that is written too
    """
    planned = [
        [
            Case(index=100 * n + i, seed=n + i, shape=shape, point=point, fault=fault)
            for i, (point, fault) in enumerate(of)
        ]
        for n, (shape, of) in enumerate(worlds.items())
    ]
    results: list[Result] = []
    run_lanes(["one", "two"], folder, planned, results.append, make=partial(Pipeline, beside=beside))
    assert [result for result in results if result.verdict != "recovered"] == []
    cases = [case for world in planned for case in world]
    assert sorted(result.index for result in results) == sorted(case.index for case in cases)
    held = [result.held_seconds for result in results if result.held_seconds is not None]
    assert held, "at least one driver died with an open transaction that would have outlived it"
    return cases


@pytest.mark.timeout(3600)
def test_two_faults_at_named_steps_lose_and_double_nothing(tmp_path: Path) -> None:
    run(TWO, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twelve_faults_at_named_steps_lose_and_double_nothing(tmp_path: Path) -> None:
    cases = run(WORLDS, tmp_path)
    assert len(cases) == 12
    assert {case.shape for case in cases} == set(SHAPES)
    assert {case.point for case in cases} == set(NAMES)
    assert {case.fault for case in cases} == set(Fault)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", WITH_TABLE)
def test_a_table_beside_the_topic_has_each_row_once_too(tmp_path: Path, kind: str) -> None:
    cases = run(WITH_TABLE[kind], tmp_path, kind)
    assert {case.point for case in cases} == set(POINTS_WITH_TABLE) - set(NAMES)
    assert {case.fault for case in cases} >= {Fault.DRIVER, Fault.BROKER, Fault.FREEZE}
