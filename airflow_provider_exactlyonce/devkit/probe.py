"""Ask a broker whether clients can work with it."""

from __future__ import annotations

from typing import Any


def why_not_ready(host: str, port: int, cluster_id: str, timeout_seconds: float = 0.5) -> str | None:
    """Return why the broker is not ready, or None once it is registered and leads every partition it has.

    :param cluster_id: as in its ``meta.properties``, so that another broker on this port is not mistaken for it
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    # What fails is the answer: the client itself logs nothing of it.
    admin = AdminClient({"bootstrap.servers": f"{host}:{port}", "log_level": 0, "reconnect.backoff.max.ms": 100})
    try:
        return judge(admin.list_topics(timeout=timeout_seconds), cluster_id)
    except KafkaException as error:
        return f"{host}:{port} does not answer ({error.args[0].str()})"


def judge(metadata: Any, cluster_id: str) -> str | None:
    """Return why a broker that answers is not ready, None when it is.

    :param metadata: a ``ClusterMetadata``; its type declares the cluster's id as None
    """
    if metadata.cluster_id != cluster_id:
        return f"the broker that answers belongs to cluster {metadata.cluster_id!r}, not {cluster_id!r}"
    if not metadata.brokers or metadata.controller_id < 0:
        return "the broker is not registered with its controller yet"
    for topic in metadata.topics.values():
        for partition in topic.partitions.values():
            if partition.leader < 0:
                return f"{topic.topic}-{partition.id} has no leader yet"
    return None
