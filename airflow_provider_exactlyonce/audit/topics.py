"""The settings of a sink topic that matter for its audit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_exactlyonce.kafka.config import for_confluent
from airflow_provider_exactlyonce.kafka.topic_settings import read_settings


@dataclass(frozen=True, kw_only=True)
class SinkTopic:
    """A topic that the ledger names.

    :param retention_milliseconds: how old its records become, -1 for no limit
    :param retention_bytes: how large each of its partitions becomes, -1 for no limit
    :param is_compacted: whether a newer record with the same key replaces an older one
    """

    retention_milliseconds: int
    retention_bytes: int
    is_compacted: bool

    def may_have_expired(self, committed: int) -> bool:
        """Whether retention may have removed rows committed at this time (milliseconds since the epoch)."""
        if self.retention_bytes >= 0:
            return True
        age = time.time() * 1000 - committed
        return 0 <= self.retention_milliseconds < age


def describe(config: Mapping[str, Any], topics: list[str]) -> dict[str, SinkTopic]:
    """Read topics' settings; they exist."""
    from confluent_kafka.admin import AdminClient

    sink_topics = {}
    for topic, settings in read_settings(AdminClient(for_confluent(config)), topics).items():
        deletes = "delete" in settings["cleanup.policy"]
        sink_topics[topic] = SinkTopic(
            retention_milliseconds=int(settings["retention.ms"]) if deletes else -1,
            retention_bytes=int(settings["retention.bytes"]) if deletes else -1,
            is_compacted="compact" in settings["cleanup.policy"],
        )
    return sink_topics
