"""Settings of topics and brokers that a test changes for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from tests.waiting import eventually

_OWN = (ConfigSource.DYNAMIC_TOPIC_CONFIG.value, ConfigSource.DYNAMIC_BROKER_CONFIG.value)


@contextmanager
def setting(
    config: Mapping[str, str], of: str, kind: ResourceType = ResourceType.TOPIC, **changes: str
) -> Iterator[None]:
    """Change settings of a topic, or of a broker, for a while."""
    admin = AdminClient(dict(config))
    values = {name.replace("_", "."): value for name, value in changes.items()}

    def change(operation: AlterConfigOpType) -> None:
        entries = [ConfigEntry(name, value, incremental_operation=operation) for name, value in values.items()]
        resource = ConfigResource(kind, of, incremental_configs=entries)
        admin.incremental_alter_configs([resource])[resource].result(30)
        is_set = operation is AlterConfigOpType.SET
        eventually(lambda: all(own(name) == (value if is_set else None) for name, value in values.items()), "it is so")

    def own(name: str) -> str | None:
        resource = ConfigResource(kind, of)
        entry = admin.describe_configs([resource])[resource].result(30)[name]
        return entry.value if entry.source in _OWN else None

    change(AlterConfigOpType.SET)
    try:
        yield
    finally:
        change(AlterConfigOpType.DELETE)
