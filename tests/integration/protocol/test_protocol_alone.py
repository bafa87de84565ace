"""Three hundred seeded faults against the protocol alone, and wrong protocols that the same harness must catch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from tests.integration.protocol.lane import BROKER, FREEZE, FREEZE_TASK, KILL, KILL_TASK, Forge, Lane, Plan, run_lanes

SEEDS = range(300)
LANES = 8


@pytest.mark.timeout(3600)
def test_three_hundred_seeded_faults_lose_and_double_nothing(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, kafka_config: Mapping[str, str]
) -> None:
    plans = [Plan.of(seed) for seed in SEEDS]
    of_broker = [plan for plan in plans if plan.kind == BROKER]
    others = sorted((plan for plan in plans if plan.kind != BROKER), key=lambda plan: "SIGSTOP" not in plan.kind)
    own_folder = tmp_path_factory.mktemp("own")
    with EmbeddedBroker(own_folder / "broker") as own, Forge(own_folder / "forge") as forge:
        own_config = {"bootstrap.servers": own.bootstrap_servers}
        lanes = [Lane(forge, tmp_path / f"lane{number}", kafka_config) for number in range(LANES)]
        outcomes = run_lanes(
            [*((lane, others) for lane in lanes), (Lane(forge, tmp_path / "own", own_config, own), of_broker)]
        )
    bad = [outcome for outcome in outcomes if outcome.findings]
    assert not bad, "\n".join(
        f"{outcome}\n  again: python -m tests.integration.protocol {outcome.plan.seed}" for outcome in bad
    )
    assert sorted(outcome.plan.seed for outcome in outcomes) == list(SEEDS)
    kinds = Counter(outcome.plan.kind for outcome in outcomes)
    assert kinds == {KILL: 225, KILL_TASK: 60, FREEZE: 6, FREEZE_TASK: 6, BROKER: 3}
    planned = sum(len(outcome.plan.steps) for outcome in outcomes if outcome.plan.kind == KILL)
    deaths = sum(outcome.deaths for outcome in outcomes if outcome.plan.kind == KILL)
    assert deaths > 0.7 * planned, f"only {deaths} of {planned} planned deaths took place"


def by_death(number: int) -> Plan:
    return Plan(seed=number, kind=KILL, steps=("after-end-transaction:batch=1",))


def by_a_tasks_death(number: int) -> Plan:
    """Kill a task, hopefully in the midst of its rows: when that is depends on the machine."""
    return Plan(seed=number, kind=KILL_TASK, harm=(9, 1, random.Random(number).uniform(0, 0.3), 0.0))


@pytest.mark.parametrize(
    ("protocol", "draw"), [("WithoutReplayCheck", by_death), ("CommitsWhatFailed", by_a_tasks_death)]
)
def test_a_wrong_protocol_is_caught(
    protocol: str, draw: Callable[[int], Plan], tmp_path: Path, kafka_config: Mapping[str, str]
) -> None:
    with Forge(tmp_path / "forge") as forge, Lane(forge, tmp_path / protocol, kafka_config, protocol=protocol) as lane:
        assert any(lane.run(draw(number)).findings.doubled for number in range(1, 100))
