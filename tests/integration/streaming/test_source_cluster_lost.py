"""The source's cluster dies and comes back, and the sink's lives: nothing is lost or doubled, all say what is away."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.control import status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.status import DriverState
from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.doctor.examine import examine
from airflow_provider_exactlyonce.ledger.gate import Gate, GateAnswer, Gates
from airflow_provider_exactlyonce.ledger.gate_target import GateTarget
from tests.delta_reader import read_delta
from tests.integration.streaming.harness import CONN_ID, World, clean_audit, read_committed
from tests.integration.streaming.source_topics import Topics, check
from tests.waiting import eventually

pytestmark = pytest.mark.slow

FAILED = 1
#: How long Spark's own client waits for its cluster, where a test has no minutes.
IMPATIENT = {"kafka.default.api.timeout.ms": "3000", "kafka.request.timeout.ms": "2000", "fetchOffset.numRetries": "1"}


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Give the source's cluster, which a test may kill."""
    with EmbeddedBroker(tmp_path_factory.mktemp("mortal"), heap_megabytes=256) as broker:
        yield broker


@dataclass
class Stage:
    """A pipeline whose topics are on another cluster than its sink; the sink's has some of the same names."""

    world: World
    topics: Topics
    broker: EmbeddedBroker

    @property
    def away(self) -> str:
        return (
            f"the cluster of connection {CONN_ID}, which sources are read from: "
            f"Kafka at {self.broker.bootstrap_servers} can't be reached"
        )

    def status(self) -> status.Status:
        driver_status = status.read(Home(self.world.home).status)
        assert driver_status is not None
        return driver_status

    def errors(self) -> dict[str, str]:
        """Return what the doctor finds."""
        return {
            finding.name: finding.what for finding in examine(self.world.pipeline, self.world.config, None).findings
        }

    def commit(self, *names: str, records: int = 40) -> None:
        """Send more, and wait until the driver that runs has committed it."""
        self.topics.send(records, *names)
        eventually(lambda: self.read() == sum(self.topics.sent.values()), "all is committed", poll_seconds=0.5)

    def read(self) -> int:
        ends: dict[tuple[str, int], int] = {}
        for commit in self.world.ledger()[0]:
            ends |= commit.ends
        return sum(ends.values())

    def check(self) -> None:
        sent = {self.topics.name(name): count for name, count in self.topics.sent.items()}
        check(self.world.config, self.world.sink, self.world.ledger()[0], sent, self.topics.config)
        clean_audit(self.world.config, self.world.pipeline)


@pytest.fixture
def stage(
    world: World, mortal: EmbeddedBroker, kafka_config: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stage]:
    topics = Topics({"bootstrap.servers": mortal.bootstrap_servers})
    world.job, world.elsewhere = "topics.py", topics.config
    world.source = ",".join(topics.make("a", "b"))
    decoys = Topics(kafka_config, topics.prefix)
    decoys.make("a", "b", partitions=1)
    decoys.send(7, "a")
    for name, value in world.connections.items():
        monkeypatch.setenv(name, value)
    yield Stage(world, topics, mortal)
    if not mortal.is_running:
        mortal.start()


def test_a_batch_that_only_the_ledger_has_waits_for_the_sources_cluster_and_is_not_written_again(
    stage: Stage, tmp_path: Path
) -> None:
    world = stage.world
    stage.topics.send(90, "a", "b")
    killed = world.start(failpoints="after-commit:batch=1")
    assert killed.wait() == -signal.SIGKILL, killed.output()[-3000:]
    before = world.ledger()
    assert [commit.commit for commit in before[0]] == [1, 2]

    stage.broker.kill()
    away = world.start()
    assert away.wait() == FAILED, away.output()[-3000:]
    assert stage.away in away.output()
    assert world.ledger() == before, "no run has begun"
    assert stage.away in stage.errors()["topic-unavailable"]
    assert "topic-missing" not in stage.errors()
    stage.broker.start()

    # Now it dies when the start has looked at it, before the batch is run again.
    stage.topics.send(30, "b")
    hold = tmp_path / "hold"
    last = world.start(failpoints=f"after-claim:hold={hold}")
    eventually(hold.exists, "the claim")
    stage.broker.kill()
    hold.unlink()
    time.sleep(3)
    stage.broker.start()
    assert last.wait() == 0, last.output()[-3000:]
    assert "was committed before: state rebuilt, nothing written" in last.output()
    assert world.ledger()[0][:2] == before[0]
    stage.check()


def test_a_batch_that_another_sink_has_alone_is_read_again_from_the_sources_cluster(
    stage: Stage, tmp_path: Path
) -> None:
    world, table = stage.world, {"TEST_TABLE": str(tmp_path / "table")}
    stage.topics.send(60, "a", "b")
    killed = world.start(environment=table, failpoints="after-sink-commit:batch=1", own_jvm=True)
    assert killed.wait() == -signal.SIGKILL, killed.output()[-3000:]
    lineage = Home(world.home).current()
    assert lineage is not None
    Checkpoint(Home(world.home).checkpoint(lineage.id)).removal("offsets", 1)()  # as a host's crash leaves it
    stage.topics.send(30, "a")
    last = world.start(environment=table)
    assert last.wait() == 0, last.output()[-3000:]
    assert "batch 1 is planned as run 1 has committed it to a sink" in last.output()
    stage.check()
    kafka = [json.loads(record.value or b"") for record in read_committed(world.config, world.sink)]
    assert sorted((row["source"], row["n"]) for row in read_delta(tmp_path / "table")) == sorted(
        (row["source"], row["n"]) for row in kafka
    )


def test_a_driver_outlives_its_sources_cluster_between_two_batches_and_in_the_middle_of_one(
    stage: Stage, tmp_path: Path
) -> None:
    world, broker = stage.world, stage.broker
    armed, hold = tmp_path / "armed", tmp_path / "hold"
    stage.topics.send(10, "a")
    driver = world.start("--interval", "1 second", until="forever", failpoints=f"@{armed}")
    stage.commit("a", "b")
    eventually(lambda: stage.status().lag == 0, "its lag is known")

    with closing(Gates(world.config)) as gates:
        asked = {
            "now": Gate(pipeline=world.pipeline, target=GateTarget(up_to_now=True)),
            "done": Gate(pipeline=world.pipeline, target=GateTarget(commit=1)),
        }
        assert all(cast(GateAnswer, answer).open for answer in gates.look(asked).values())
        broker.kill()
        eventually(lambda: stage.status().lag is None, "what nobody knows is not 0")
        progressed = stage.status().progressed
        answers = gates.look(asked)
        assert isinstance(answers["now"], Exception)
        assert cast(GateAnswer, answers["done"]).open, "it needs the sink's cluster only"
        assert (stage.status().state, stage.status().progressed) == (DriverState.RUNNING, progressed)
        assert stage.away in stage.errors()["topic-unavailable"]
        broker.start()
        stage.commit("a", "b")
        eventually(lambda: stage.status().lag == 0, "its lag is known again")
        assert cast(GateAnswer, gates.look(asked)["now"]).open

    def killed_at(step: str) -> None:
        armed.write_text(f"{step}:hold={hold}")
        stage.topics.send(40, "a", "b")
        eventually(hold.exists, step)
        broker.kill()
        hold.unlink()

    killed_at("during-send")  # all is read and sent; whether the topics are still the same is asked before the commit
    eventually(lambda: "waits: source of batch" in driver.output(), "the next attempt waits")
    assert f"on the cluster of connection {CONN_ID}" in driver.output()
    broker.start()
    stage.commit("b")
    killed_at("after-begin")  # nothing is read yet
    time.sleep(3)
    broker.start()
    stage.commit("a")

    assert world.stop(driver) == 0, driver.output()[-3000:]
    assert len(world.ledger()[1]) == 1, "it was one run"
    stage.check()


def test_a_driver_that_gives_up_says_which_cluster_is_away_and_the_next_one_goes_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = stage.world
    monkeypatch.setenv("TEST_OPTIONS", json.dumps(IMPATIENT))
    stage.topics.send(10, "a")
    driver = world.start("--interval", "1 second", until="forever")
    stage.commit("b")
    stage.broker.kill()
    assert driver.wait() == FAILED, driver.output()[-3000:]
    ended = stage.status()
    assert ended.error is not None
    assert (ended.state, ended.error.exit_code, ended.error.decision) == (DriverState.FAILED, FAILED, "restart")
    assert stage.away in ended.error.message
    assert "Spark says: " in ended.error.message
    stage.broker.start()
    stage.topics.send(30, "a", "b")
    last = world.start()
    assert last.wait() == 0, last.output()[-3000:]
    stage.check()
