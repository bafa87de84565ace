"""Makes topics on the embedded broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from airflow_provider_exactlyonce.devkit.errors import DevkitError
from airflow_provider_exactlyonce.polling import poll_until

_TIMEOUT_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.02


@dataclass(frozen=True, kw_only=True)
class ReadyTopic:
    """A topic that is there.

    :param created: whether it was made now
    """

    partitions: int
    created: bool


def create_topic(bootstrap_servers: str, name: str, partitions: int | None = None) -> ReadyTopic:
    """Make a topic if it isn't there, and wait until it can be used.

    :param partitions: how many it has; None takes one that is there as it is, and makes one of one partition
    :raises DevkitError: when there is one with another number of partitions, or the broker refuses it
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})
    topic = NewTopic(name, num_partitions=1 if partitions is None else partitions)
    created = True
    try:
        admin.create_topics([topic], operation_timeout=_TIMEOUT_SECONDS)[name].result(_TIMEOUT_SECONDS)
    except (KafkaException, ValueError) as error:
        code = error.args[0].code() if isinstance(error, KafkaException) else None
        if code != KafkaError.TOPIC_ALREADY_EXISTS:
            reason = error.args[0].str() if isinstance(error, KafkaException) else error
            raise DevkitError(f"topic {name!r} could not be created: {reason}") from error
        created = False
    metadata = poll_until(  # the broker learns of a new topic a little later
        lambda: admin.list_topics(name, timeout=_TIMEOUT_SECONDS).topics[name],
        done=lambda metadata: metadata.error is None,
        seconds=_TIMEOUT_SECONDS,
        poll_seconds=_POLL_SECONDS,
    )
    if metadata.error is not None:
        raise DevkitError(f"topic {name} can't be used: {metadata.error.str()}")
    count = len(metadata.partitions)
    if partitions is not None and count != partitions:
        raise DevkitError(
            f"topic {name} is there with {count} partitions, not {partitions}: leave out --partitions to take it as it "
            "is, or choose another name"
        )
    return ReadyTopic(partitions=count, created=created)
