"""What the readiness probe makes of a broker's metadata."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import BrokerMetadata, ClusterMetadata, PartitionMetadata, TopicMetadata

from airflow_provider_exactlyonce.devkit.probe import judge


def answer(*, brokers: int = 1, cluster: str = "ours", controller: int = 1, leader: int = 1) -> Any:
    """Build the metadata of a cluster with a topic of two partitions."""
    metadata: Any = ClusterMetadata()
    topic: Any = TopicMetadata()
    metadata.cluster_id, metadata.controller_id = cluster, controller
    metadata.brokers = {number: BrokerMetadata() for number in range(1, brokers + 1)}
    metadata.topics, topic.topic = {"events": topic}, "events"
    for number, led_by in enumerate((1, leader)):
        partition: Any = PartitionMetadata()
        partition.id, partition.leader = number, led_by
        topic.partitions[number] = partition
    return metadata


@pytest.mark.parametrize(
    ("metadata", "lacks"),
    [
        (answer(), None),
        (answer(brokers=0), "the broker is not registered with its controller yet"),
        (answer(controller=-1), "the broker is not registered with its controller yet"),
        (answer(leader=-1), "events-1 has no leader yet"),
        (answer(cluster="theirs"), "the broker that answers belongs to cluster 'theirs', not 'ours'"),
    ],
    ids=["ready", "unregistered", "without a controller", "leaderless", "foreign"],
)
def test_what_a_broker_lacks_is_named(metadata: Any, lacks: str | None) -> None:
    assert judge(metadata, "ours") == lacks
