"""A pipeline with replication 3 goes on while brokers fail in mid-batch; judged record by record.

All tests share one cluster, and one pipeline as long as it does well: a driver's start costs more than a case.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient
from kafka.admin import TransactionState
from kafka.errors import KafkaError

from airflow_provider_exactlyonce.ledger.records import ledger_topic, transactional_id
from tests.crash_matrix.cases import LONG_TIMEOUT_SECONDS
from tests.crash_matrix.lane import verdict_of
from tests.crash_matrix.observer import HIGH, STABLE
from tests.crash_matrix.pipeline import Pipeline
from tests.crash_matrix.shapes import UPDATE
from tests.integration.brokers.cluster import NODES, BrokerCluster
from tests.integration.brokers.hold_ups import HoldUps
from tests.integration.streaming.harness import end_offsets
from tests.waiting import eventually

pytestmark = pytest.mark.slow

BURST = 60
#: Longer than a broker's session (9 s): whoever is cut off for so long is fenced, and what it led has other leaders.
PARTITION_SECONDS = 15.0


class Target(Enum):
    """Which broker fails."""

    LEADER = "leader of a sink partition"
    COORDINATOR = "transaction coordinator"
    CONTROLLER = "active controller"


class Failure(Enum):
    """How it fails. It is back after the next commit."""

    KILL = "SIGKILL"
    FREEZE = "SIGSTOP"


STEPS = ("after-begin", "during-send", "after-pre-commit", "after-end-transaction")
#: Each two of target, step and failure meet.
PAIRWISE = [
    (target, step, tuple(Failure)[(row + column) % 2])
    for row, target in enumerate(Target)
    for column, step in enumerate(STEPS)
]

NoteProperty = Callable[[str, Any], None]


class Trial:
    """One pipeline on the cluster, and what is noted of a case."""

    def __init__(self, cluster: BrokerCluster, folder: Path, name: str) -> None:
        self.cluster = cluster
        config = {"bootstrap.servers": cluster.bootstrap_servers}
        self.pipeline = Pipeline(config=config, name=name, shape=UPDATE, folder=folder / name)
        self.is_well = True

    def ensure_runs(self) -> None:
        """Start the driver if none runs, and see that a batch goes through."""
        if self.pipeline.driver is None:
            self.pipeline.start(LONG_TIMEOUT_SECONDS)
        self.pipeline.send(BURST)
        assert not self.pipeline.settle(self.pipeline.last_batch + 1)

    def hold(self, step: str) -> int:
        """Send a burst and hold the driver at a step of its batch; returns the batch's number."""
        batch = self.pipeline.last_batch + 1
        self.pipeline.arm(f"{step}:batch={batch}")
        self.pipeline.send(BURST)
        self.pipeline.wait_for_hold(f"batch {batch} reaches {step}")
        return batch

    def broker(self, target: Target) -> int:
        """Return which broker is the target just now."""
        if target is Target.LEADER:
            return self.cluster.leader(self.pipeline.sink, 0)
        if target is Target.COORDINATOR:
            return self.cluster.coordinator(transactional_id(self.pipeline.name))
        return self.cluster.controller()

    def hold_ups(self) -> HoldUps:
        """Return what watches other readers of the sink and of the ledger."""
        places = [*((self.pipeline.sink, partition) for partition in range(4)), (ledger_topic(self.pipeline.name), 0)]
        return HoldUps(self.cluster.bootstrap_servers, places)

    def wait_for_commit(self, batch: int) -> float:
        """Wait until a batch is committed; returns how many seconds that took."""
        began = time.monotonic()
        self.pipeline.wait(lambda: self.pipeline.last_batch >= batch, f"batch {batch} is committed")
        return time.monotonic() - began

    def judge(self, note: NoteProperty, held: HoldUps, restarts_before: int) -> None:
        """Bring every broker back, let one more batch go through, and judge every record."""
        self.cluster.heal()
        self.pipeline.observer.reconnect()
        self.pipeline.send(BURST)
        findings = self.pipeline.settle(self.pipeline.last_batch + 1)
        note("verdict", verdict_of(findings))
        note("readers held up, seconds", f"{held.longest_seconds:.1f}")
        note("restarts of the driver", self.pipeline.restarts - restarts_before)
        assert not findings, findings.notes


def ends_after_the_leader_died_with_a_marker_due(cluster: BrokerCluster, replicas: int) -> tuple[int, int]:
    """Commit a transaction whose marker can't be written, because the partition's leader is frozen; then kill it.

    :return: the last stable offset and the high watermark, once all brokers are back and, by the coordinator, the
        transaction is complete
    """
    servers, topic = cluster.bootstrap_servers, f"markers-{replicas}"
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(60)
    leader = next(node for node in NODES if node not in (cluster.coordinator(topic), cluster.controller()))
    nodes = [leader, *(node for node in NODES if node != leader)][:replicas]
    settings = {"min.insync.replicas": str(min(2, replicas))}
    new = NewTopic(topic, num_partitions=1, replica_assignment=[nodes], config=settings)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([new])[topic].result(30)
    cluster.wait_until_whole()
    producer.begin_transaction()
    for number in range(100):
        producer.produce(topic, str(number))
    assert producer.flush(30) == 0
    transactions = KafkaAdminClient(bootstrap_servers=servers.split(","))

    def is_in(*states: TransactionState) -> bool:
        try:
            return transactions.describe_transactions([topic])[topic].state in states
        except KafkaError:  # it asked the frozen broker for the coordinator
            return False

    def commit() -> None:
        with contextlib.suppress(KafkaException):  # it is the coordinator that is asked
            producer.commit_transaction(60)

    assert transactions.describe_transactions([topic])[topic].coordinator_id == cluster.coordinator(topic)
    committing = threading.Thread(target=commit)
    cluster.freeze(leader)
    try:
        committing.start()
        decided = TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT
        eventually(lambda: is_in(*decided), "the commit is decided")
        cluster.kill(leader)
        eventually(lambda: cluster.leader(topic, 0) != leader, "the leader is fenced")
        cluster.heal()
        eventually(lambda: is_in(TransactionState.COMPLETE_COMMIT), "the coordinator has done with the transaction")
    finally:
        committing.join()
        transactions.close()
    stable, high = (end_offsets({"bootstrap.servers": servers}, topic, isolation)[0] for isolation in (STABLE, HIGH))
    return stable, high


def test_a_marker_that_is_due_reaches_the_next_leader_of_three_replicas(
    cluster: BrokerCluster, note: NoteProperty
) -> None:
    note("case", "a marker is due when the leader dies (KAFKA-20734), three replicas")
    stable, high = ends_after_the_leader_died_with_a_marker_due(cluster, 3)
    assert (stable, high) == (101, 101)  # the records, and their marker
    note("verdict", "recovered")


def test_a_marker_that_is_due_is_dropped_where_there_is_no_next_leader(
    cluster: BrokerCluster, note: NoteProperty
) -> None:
    """The control: the same with one replica shows Kafka's defect. When it fails, Kafka has mended it."""
    note("case", "the same with one replica, as a control")
    stable, high = ends_after_the_leader_died_with_a_marker_due(cluster, 1)
    assert (stable, high) == (0, 100)
    note("verdict", "hanging, as expected: committed, and hidden for good")


@pytest.fixture(scope="module")
def trials(cluster: BrokerCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Trial]]:
    made: list[Trial] = []
    yield made
    for trial in made:
        trial.pipeline.close()


@pytest.fixture
def trial(cluster: BrokerCluster, trials: list[Trial], tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """Give a pipeline that runs, on a cluster that is whole; a new one after a test that failed."""
    cluster.heal()
    if not trials or not trials[-1].is_well:
        trials.append(Trial(cluster, tmp_path_factory.mktemp("trial"), f"brokers-{len(trials)}"))
    trial = trials[-1]
    trial.is_well = False
    trial.ensure_runs()
    cluster.wait_until_whole()
    return trial


@pytest.fixture
def note(record_property: NoteProperty) -> NoteProperty:
    """Give what notes a cell of the table at the end."""
    return record_property


@pytest.mark.parametrize(
    ("target", "step", "failure"), PAIRWISE, ids=lambda value: value if isinstance(value, str) else value.name.lower()
)
def test_a_broker_that_fails_in_mid_batch_loses_and_doubles_nothing(
    trial: Trial, note: NoteProperty, target: Target, step: str, failure: Failure
) -> None:
    note("case", f"{failure.value} of the {target.value}, `{step}`")
    restarts = trial.pipeline.restarts
    batch = trial.hold(step)
    node = trial.broker(target)
    with trial.hold_ups() as held:
        (trial.cluster.kill if failure is Failure.KILL else trial.cluster.freeze)(node)
        trial.pipeline.release()
        note("seconds to the next commit", f"{trial.wait_for_commit(batch):.1f}")
        trial.judge(note, held, restarts)
    trial.is_well = True


def test_a_minority_that_is_cut_off_loses_and_doubles_nothing(trial: Trial, note: NoteProperty) -> None:
    note("case", "one broker cut off: the leader of a sink partition, `during-send`")
    restarts = trial.pipeline.restarts
    batch = trial.hold("during-send")
    with trial.hold_ups() as held:
        trial.cluster.cut_off(trial.broker(Target.LEADER))
        trial.pipeline.release()
        note("seconds to the next commit", f"{trial.wait_for_commit(batch):.1f}")
        trial.judge(note, held, restarts)
    trial.is_well = True


def test_a_majority_that_is_cut_off_loses_and_doubles_nothing(trial: Trial, note: NoteProperty) -> None:
    note("case", f"two brokers cut off for {PARTITION_SECONDS:.0f} s, `after-pre-commit`; the commit from healing on")
    restarts = trial.pipeline.restarts
    batch = trial.hold("after-pre-commit")
    with trial.hold_ups() as held:
        for node in NODES[1:]:
            trial.cluster.cut_off(node)
        trial.pipeline.release()
        time.sleep(PARTITION_SECONDS)
        began = time.monotonic()
        trial.cluster.heal()
        trial.wait_for_commit(batch)
        note("seconds to the next commit", f"{time.monotonic() - began:.1f}")
        trial.judge(note, held, restarts)
    trial.is_well = True


def test_all_three_restart_one_after_the_other_under_load(trial: Trial, note: NoteProperty) -> None:
    note("case", "rolling restart of all three under load; the longest pause between commits")
    restarts = trial.pipeline.restarts
    ended, errors = threading.Event(), list[BaseException]()

    def load() -> None:
        try:
            while not ended.wait(0.2):
                trial.pipeline.send(BURST // 2)
        except BaseException as error:
            errors.append(error)

    def restart_all() -> None:
        try:
            for node in NODES:
                trial.cluster.stop(node)
                trial.cluster.heal()
        except BaseException as error:
            errors.append(error)

    first, longest, last, seen = trial.pipeline.last_batch, 0.0, time.monotonic(), trial.pipeline.last_batch
    feeder, restarter = threading.Thread(target=load), threading.Thread(target=restart_all)
    with trial.hold_ups() as held:
        feeder.start()
        restarter.start()

        def is_done() -> bool:
            nonlocal longest, last, seen
            now = time.monotonic()
            longest = max(longest, now - last)
            if trial.pipeline.last_batch > seen:
                seen, last = trial.pipeline.last_batch, now
            return not restarter.is_alive()

        try:
            trial.pipeline.wait(is_done, "all brokers were restarted")
        finally:
            ended.set()
            feeder.join()
            restarter.join()
        assert errors == []
        assert seen > first + len(NODES), "batches were committed meanwhile"
        note("seconds to the next commit", f"{longest:.1f}")
        trial.judge(note, held, restarts)
    trial.is_well = True


def test_a_driver_starts_while_the_first_broker_of_its_list_is_cut_off(trial: Trial, note: NoteProperty) -> None:
    note("case", "a driver starts while the first broker of its list is cut off; the commit from its start on")
    restarts = trial.pipeline.restarts
    trial.pipeline.stop()
    trial.pipeline.send(BURST)
    batch = trial.pipeline.last_batch + 1
    with trial.hold_ups() as held:
        trial.cluster.cut_off(NODES[0])
        trial.pipeline.start(LONG_TIMEOUT_SECONDS)
        note("seconds to the next commit", f"{trial.wait_for_commit(batch):.1f}")
        trial.judge(note, held, restarts)
    trial.is_well = True
