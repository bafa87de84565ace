"""A pipeline with replication 3 goes on while brokers fail in mid-batch; judged record by record.

All tests share one cluster, and one pipeline as long as it does well: a driver's start costs more than a case.
"""

from __future__ import annotations

import contextlib
import threading
import time
from enum import Enum

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient
from kafka.admin import TransactionState
from kafka.errors import KafkaError

from tests.crash_matrix.cases import LONG_TIMEOUT_SECONDS
from tests.crash_matrix.observer import HIGH, STABLE
from tests.integration.brokers.cluster import NODES, BrokerCluster
from tests.integration.brokers.trial import BURST, NoteProperty, Target, Trial
from tests.integration.streaming.harness import end_offsets
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

#: Longer than a broker's session (9 s): whoever is cut off for so long is fenced, and what it led has other leaders.
PARTITION_SECONDS = 15.0
#: Of a link, and of the packets that wait for it; more are dropped.
LINK_BYTES, QUEUE_BYTES = 100_000, 30_000
#: Events, of some hundred bytes each.
FILLS_LINKS, FILLS_SEGMENTS = 3_000, 2_000


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


def test_a_broker_whose_disk_is_full_loses_and_doubles_nothing(trial: Trial, note: NoteProperty) -> None:
    note("case", "the disk of the leader of a sink partition is full, `during-send`; the broker ends by itself")
    restarts = trial.pipeline.restarts
    batch = trial.hold("during-send")
    node = trial.broker(Target.LEADER)
    with trial.hold_ups() as held:
        trial.cluster.fill_disk(node)
        trial.pipeline.release()
        note("seconds to the next commit", f"{trial.wait_for_commit(batch):.1f}")
        while trial.cluster.is_alive(node):  # it has room in a segment that it has made already
            trial.pipeline.send(FILLS_SEGMENTS)
            trial.wait_for_commit(trial.pipeline.last_batch + 1)
        trial.judge(note, held, restarts)
    trial.is_well = True


def test_packets_that_are_late_or_lost_lose_and_double_nothing(trial: Trial, note: NoteProperty) -> None:
    note("case", f"all three brokers behind links of {LINK_BYTES // 1000} kB/s, which delay packets and drop some")
    restarts = trial.pipeline.restarts
    with trial.hold_ups() as held:
        try:
            for node in NODES:
                trial.cluster.narrow(node, LINK_BYTES, QUEUE_BYTES)
        except OSError as error:
            pytest.skip(f"links can't be narrowed: {error}")
        began, first = time.monotonic(), trial.pipeline.last_batch
        trial.pipeline.send(FILLS_LINKS)
        trial.wait_for_commit(first + 1)
        lost = sum(trial.cluster.dropped(node) for node in NODES)
        note("seconds to the next commit", f"{time.monotonic() - began:.1f}")
        trial.judge(note, held, restarts)
    assert lost > 0
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
