"""Creates the ledger's topic, or checks the one that is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_exactlyonce.exceptions import SettingRefusedError
from airflow_provider_exactlyonce.kafka.config import for_confluent
from airflow_provider_exactlyonce.ledger.records import ledger_topic

_TIMEOUT_SECONDS: Final = 30.0
_REPLICATION_DEFAULT: Final = -1


def ensure(config: Mapping[str, Any], pipeline: str) -> None:
    """Create the ledger topic if absent; check its settings if present. May be repeated.

    :param config: client configuration in librdkafka's names
    :raises SettingRefusedError: when the topic exists with settings that would lose records
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    name = ledger_topic(pipeline)
    admin = AdminClient(for_confluent(config))
    topic = NewTopic(
        name, num_partitions=1, replication_factor=_REPLICATION_DEFAULT, config={"cleanup.policy": "compact"}
    )
    try:
        admin.create_topics([topic], operation_timeout=_TIMEOUT_SECONDS)[name].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        check(config, pipeline)


def check(config: Mapping[str, Any], pipeline: str) -> None:
    """Check the settings of the ledger topic, which is there.

    :raises SettingRefusedError: when they would lose records
    """
    from confluent_kafka import TopicCollection
    from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

    name = ledger_topic(pipeline)
    admin = AdminClient(for_confluent(config))
    resource = ConfigResource(ResourceType.TOPIC, name)
    settings = admin.describe_configs([resource], request_timeout=_TIMEOUT_SECONDS)[resource].result()
    policy = settings["cleanup.policy"].value
    if policy != "compact":
        raise SettingRefusedError(f"cleanup.policy of topic {name}", policy, "compact", "commits would be deleted")
    described = admin.describe_topics(TopicCollection([name]), request_timeout=_TIMEOUT_SECONDS)[name].result()
    if len(described.partitions) != 1:
        raise SettingRefusedError(
            f"number of partitions of topic {name}", len(described.partitions), 1, "commits would have no order"
        )
