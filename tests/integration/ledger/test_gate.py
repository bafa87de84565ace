"""Gates against a reference: an independent reader, after each of many random steps on a real broker.

A gate that is open while the reader lacks a row is wrong, and so is one that stays shut while it lacks none. Replay a
seed with ``GATE_SEEDS=17 pytest -m "" tests/integration/ledger/test_gate.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from random import Random

import pytest

from airflow_provider_exactlyonce.ledger.gate import Gate, GateAnswer, Gates
from tests.integration.ledger.gate_world import UNREACHABLE, GateWorld, World
from tests.waiting import eventually

WORLDS = (
    World(),
    World(is_backfill=True),
    World(tells_topics=False, loses=False),
    World(guarantees=("exactly_once", "at_least_once")),
    World(loses=False),
)
STEPS = 20
WAITING = 12
given = os.environ.get("GATE_SEEDS", "")
SEEDS = [int(seed) for seed in given.split(",")] if given else range(2)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_open_gate_hides_no_row_and_a_shut_one_waits_for_something(
    seed: int, kafka_config: dict[str, str], make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(seed, kafka_config, make_topic, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [] if given else range(len(SEEDS), 60))
def test_the_same_with_many_seeds(
    seed: int, kafka_config: dict[str, str], make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(seed, kafka_config, make_topic, monkeypatch)


def run(seed: int, config: dict[str, str], make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the steps of a seed, and judge gates after each."""
    print(f"seed {seed}")
    random = Random(seed)
    kind = WORLDS[seed % len(WORLDS)]
    is_searched_whole = random.random() < 0.7
    if not is_searched_whole:
        monkeypatch.setattr("airflow_provider_exactlyonce.ledger.written._FARTHEST", random.choice((8, 30)))
    with (
        closing(GateWorld(config, make_topic, random, kind)) as world,
        closing(Judge(world, window=random.choice((4, 8, 20)), tells_all=is_searched_whole)) as judge,
    ):
        for number in range(STEPS):
            print(f"{number}: {world.step()}")
            judge.judge()


class Judge:
    """Compares gates with what the reader sees.

    :param window: of the ledger's end that they read
    :param tells_all: they may search the whole ledger
    """

    def __init__(self, world: GateWorld, *, window: int, tells_all: bool) -> None:
        self.world, self.window = world, window
        self.tells_all = tells_all and world.world.guarantees == ("exactly_once",)
        self.lasting = Gates(world.config, window=window)
        self.waiting: dict[str, Gate] = {}
        self.asked = 0

    def close(self) -> None:
        self.lasting.close()

    def judge(self) -> None:
        world = self.world
        new: dict[str, Gate] = {}
        for target in world.targets():
            self.asked += 1
            idle_after = 1e-6 if target.commit == UNREACHABLE else None
            new[f"{self.asked} {target}"] = Gate(pipeline=world.pipeline, target=target, idle_after=idle_after)
        for name in world.random.sample(list(new), 3):
            self.waiting[name] = new[name]
        for name in list(self.waiting)[:-WAITING]:
            del self.waiting[name]
        with closing(Gates(world.config, window=self.window)) as fresh:
            for gates, asked in ((self.lasting, self.waiting), (fresh, new)):
                verdicts = self._look(gates, asked)
                world.look()
                for name, verdict in verdicts.items():
                    self._check_open(name, verdict)
                may_open = world.nothing_is_held or (
                    self.tells_all and world.lost == 0 and not world.unread(world.place.commit)
                )
                if may_open:
                    self._check_that_they_open(gates, asked)

    def _look(self, gates: Gates, asked: dict[str, Gate]) -> dict[str, GateAnswer]:
        verdicts: dict[str, GateAnswer] = {}
        for name, answer in gates.look(asked).items():
            assert isinstance(answer, GateAnswer), f"{name}: {answer}"
            verdicts[name] = answer
            asked[name] = replace(asked[name], target=answer.target)
        return verdicts

    def _check_open(self, name: str, verdict: GateAnswer) -> None:
        if not verdict.open:
            return
        world = self.world
        if verdict.commit == 0 and verdict.target.is_empty:
            assert not verdict.idle, f"{name} waits for nothing"
            return
        met = world.met_by(verdict.target) if verdict.target.is_resolved else 0
        assert verdict.idle == (met == 0), f"{name} is open: {verdict}"
        assert not verdict.idle or world.is_at_the_end, f"{name} is open: {verdict}"
        lacking = world.unread(met or world.place.commit)
        assert not lacking, f"{name} is open, and the reader lacks {lacking[:5]} of commits up to {met}"

    def _check_that_they_open(self, gates: Gates, asked: dict[str, Gate]) -> None:
        last: dict[str, GateAnswer] = {}

        def shut() -> Mapping[str, str]:
            last.update(self._look(gates, asked))
            return {name: verdict.missing for name, verdict in last.items() if self._is_due(asked[name], verdict)}

        eventually(lambda: not shut(), lambda: f"these gates open: {shut()}", hang_seconds=20)

    def _is_due(self, gate: Gate, verdict: GateAnswer) -> bool:
        """Whether it is shut and should be open."""
        if verdict.open or not verdict.target.is_resolved:
            return False
        return bool(self.world.met_by(verdict.target)) or (gate.idle_after is not None and self.world.is_at_the_end)
