"""What a lane's Kafka clients are tuned with; the names are the Java client's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CONSUMER: Final = {"max.poll.records": "10000", "max.partition.fetch.bytes": str(8 << 20), "fetch.max.wait.ms": "10"}
PRODUCER: Final = {"linger.ms": "50", "batch.size": str(1 << 20)}


def kafka_options(settings: Mapping[str, str], prefix: str = "kafka.") -> dict[str, str]:
    """Return the options by which an engine's connector takes them."""
    return {f"{prefix}{name}": value for name, value in settings.items()}
