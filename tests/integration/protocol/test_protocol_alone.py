"""Seeded faults against the protocol alone, and wrong protocols that the same harness must catch.

`make test` takes 60 of the 300 seeds, chosen so that everything occurs which any of them does: each kind, each step in
each batch, each two steps that follow each other. `make test-all` takes all.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from tests.integration.protocol.lane import BROKER, FREEZE, FREEZE_TASK, KILL, KILL_TASK, Forge, Lane, Plan, run_lanes

PLANS = [Plan.of(seed) for seed in range(300)]
LANES = 8
#: Of each kind in a hundred seeds.
SHARE = {KILL: 0.75, KILL_TASK: 0.2, FREEZE: 0.02, FREEZE_TASK: 0.02, BROKER: 0.01}


def traits(plan: Plan) -> set[object]:
    """Return what a plan does, and in which order."""
    points = [step.partition(":")[0] for step in plan.steps]
    return {plan.kind, *plan.steps, *((plan.kind, point) for point in points), *pairwise(points)}


def covering(plans: Sequence[Plan], number: int) -> list[Plan]:
    """Return so many plans that have every trait which any of them has: the one with the most new ones first."""
    left, missing = list(plans), set[object]().union(*map(traits, plans))
    chosen: list[Plan] = []
    while missing:
        best = max(left, key=lambda plan: len(traits(plan) & missing))
        left.remove(best)
        chosen.append(best)
        missing -= traits(best)
    tasks = [plan for plan in left if plan.kind == KILL_TASK]  # they differ in the moment only, which has no trait
    return [*chosen, *tasks, *left][:number]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "plans", [pytest.param(covering(PLANS, 60), id="60"), pytest.param(PLANS, id="300", marks=pytest.mark.slow)]
)
def test_seeded_faults_lose_and_double_nothing(
    plans: list[Plan], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, kafka_config: Mapping[str, str]
) -> None:
    assert {trait for plan in plans for trait in traits(plan)} == {trait for plan in PLANS for trait in traits(plan)}
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
    assert sorted(outcome.plan.seed for outcome in outcomes) == sorted(plan.seed for plan in plans)
    planned = sum(len(outcome.plan.steps) for outcome in outcomes if outcome.plan.kind == KILL)
    deaths = sum(outcome.deaths for outcome in outcomes if outcome.plan.kind == KILL)
    assert deaths > 0.7 * planned, f"only {deaths} of {planned} planned deaths took place"


def test_a_hundred_seeds_have_their_share_of_each_kind() -> None:
    assert Counter(plan.kind for plan in PLANS) == {kind: len(PLANS) * share for kind, share in SHARE.items()}


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
