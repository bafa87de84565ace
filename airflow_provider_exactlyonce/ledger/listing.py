"""Which pipelines a cluster has, as its ledger topics tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from airflow_provider_exactlyonce.kafka.stable_offsets import StableOffsets
from airflow_provider_exactlyonce.ledger.records import backfilled, ledgered

_NAMED: Final = 10


def names(config: Mapping[str, Any]) -> list[str]:
    """Return the pipelines that have a ledger which the Kafka user may see, in order; ledgers of backfills, too.

    :param config: client configuration in librdkafka's names
    :raises KafkaException: when the cluster does not answer
    """
    return [name for topic in StableOffsets(config).topics() if (name := ledgered(topic)) is not None]


def hint(config: Mapping[str, Any], pipeline: str) -> str:
    """Return a sentence that lists a cluster's pipelines, for an unknown name; similar names come first.

    :param config: client configuration in librdkafka's names
    """
    from confluent_kafka import KafkaException

    try:
        return among([name for name in names(config) if backfilled(name) is None], pipeline)
    except KafkaException as error:
        return f"The pipelines can't be listed: {error.args[0]}"


def among(there: Sequence[str], pipeline: str) -> str:
    """Return the same for the names that there are."""
    if not there:
        return "No pipeline has ever been started on this cluster: check bootstrap.servers"
    folded = {name.casefold(): name for name in there}
    close_matches = [folded[name] for name in get_close_matches(pipeline.casefold(), folded, n=3)]
    others = [name for name in there if name not in close_matches][: _NAMED - len(close_matches)]
    omitted = len(there) - len(close_matches) - len(others)
    listed = ", ".join(others) + (f" and {omitted:,} more (exactlyonce list)" if omitted else "")
    if not close_matches:
        return f"There are: {listed}"
    return f"Is it {' or '.join(close_matches)}?" + (f" There are also: {listed}" if listed else "")
