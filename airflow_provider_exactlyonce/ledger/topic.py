"""Creates the ledger's topic, or checks the one that is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_provider_exactlyonce.exceptions import RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.kafka.answers import has_code
from airflow_provider_exactlyonce.kafka.config import for_confluent
from airflow_provider_exactlyonce.kafka.topic_settings import CLEAN_ELECTION, Requirement, read_settings, wrong_settings
from airflow_provider_exactlyonce.ledger.records import RECORD_BYTES_MAXIMUM, ledger_topic
from airflow_provider_exactlyonce.polling import retry_while

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Answer = TypeVar("Answer")

_TIMEOUT_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.02
_REPLICATION_DEFAULT: Final = -1
_TWO_REPLICAS: Final = "2"
_SAFE_REPLICATION: Final = 3  # from here on a write may wait for a second replica and still survive a broker's loss
#: A reader follows offsets that a record names; records that are compacted meanwhile must still be there for it.
_COMPACTION_LAG_MINIMUM_MILLISECONDS: Final = 10 * 60 * 1000
#: What retention has tombstoned is gone after so long, also from a ledger that is hardly written.
_COMPACTION_LAG_MAXIMUM_MILLISECONDS: Final = 7 * 24 * 60 * 60 * 1000


#: The settings of a new ledger topic; another value will do if the requirement holds.
_SETTINGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "max.message.bytes": str(RECORD_BYTES_MAXIMUM),
    "min.compaction.lag.ms": str(_COMPACTION_LAG_MINIMUM_MILLISECONDS),
    "max.compaction.lag.ms": str(_COMPACTION_LAG_MAXIMUM_MILLISECONDS),  # only bounds the topic's size
    CLEAN_ELECTION.setting: "false",
}
_TWO_IN_SYNC: Final = Requirement(
    "min.insync.replicas",
    lambda value, replicas: replicas < _SAFE_REPLICATION or int(value) >= 2,
    "at least 2",
    "a commit that only one broker has would be lost with it",
)
REQUIREMENTS: Final = (
    Requirement(
        "cleanup.policy",
        lambda value, replicas: value == "compact",
        "compact",
        "commits would be deleted by age or size",
    ),
    Requirement(
        "max.message.bytes",
        lambda value, replicas: int(value) >= RECORD_BYTES_MAXIMUM,
        f"at least {RECORD_BYTES_MAXIMUM}",
        "the record of a commit with many partitions would not fit",
    ),
    Requirement(
        "min.compaction.lag.ms",
        lambda value, replicas: int(value) >= _COMPACTION_LAG_MINIMUM_MILLISECONDS,
        f"at least {_COMPACTION_LAG_MINIMUM_MILLISECONDS}",
        "a record could be compacted between two steps of its reader",
    ),
    CLEAN_ELECTION,
    _TWO_IN_SYNC,
)


def ensure(config: Mapping[str, Any], pipeline: str, *, is_new: bool = False) -> None:
    """Create the ledger topic if absent; check its settings if present. May be repeated.

    The replication factor is the cluster's default. How many replicas have to be in sync is set once that is known, in
    a request of its own: who dies before it leaves a topic that is as new to the next start.

    :param config: client configuration in librdkafka's names
    :param is_new: nothing was ever written to it, whoever has created it
    :raises SettingRefusedError: when the topic exists with settings that would lose records
    :raises RefusedError: when the cluster does not let it be created
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    name = ledger_topic(pipeline)
    admin = AdminClient(for_confluent(config))
    topic = NewTopic(name, num_partitions=1, replication_factor=_REPLICATION_DEFAULT, config=dict(_SETTINGS))
    try:
        admin.create_topics([topic], operation_timeout=_TIMEOUT_SECONDS)[name].result()
    except KafkaException as error:
        if not has_code(error, KafkaError.TOPIC_ALREADY_EXISTS):
            if error.args[0].retriable():
                raise
            options = " ".join(f"--config {setting}={value}" for setting, value in _SETTINGS.items())
            raise RefusedError(
                f"the ledger topic {name} could not be created: {error.args[0].str()}. Grant CREATE on it, or create "
                f"it: kafka-topics.sh --create --topic {name} --partitions 1 {options}"
            ) from error
        check(config, pipeline, is_new=is_new)
        if not is_new:
            return
    replicas = _once_known(lambda: _replicas(admin, name))
    settings = _once_known(lambda: read_settings(admin, [name])[name])
    for refusal in wrong_settings(f"topic {name}", settings, replicas, [_TWO_IN_SYNC]).values():
        try:
            _set(admin, name, {_TWO_IN_SYNC.setting: _TWO_REPLICAS})
        except KafkaException as error:
            if not has_code(error, KafkaError.TOPIC_AUTHORIZATION_FAILED):
                raise
            raise refusal from error


def check(config: Mapping[str, Any], pipeline: str, *, is_new: bool = False) -> None:
    """Check the settings of the ledger topic, which is there.

    :param is_new: nothing was ever written to it: :func:`ensure` is still to say how many replicas have to be in sync
    :raises SettingRefusedError: when they would lose records
    """
    for setting, error in look(config, pipeline).items():
        if not (is_new and setting == _TWO_IN_SYNC.setting):
            raise error


def look(config: Mapping[str, Any], pipeline: str) -> dict[str, SettingRefusedError]:
    """Return which settings of the ledger topic, which is there, would lose records.

    :raises SettingRefusedError: when it has more than one partition
    """
    from confluent_kafka.admin import AdminClient

    name = ledger_topic(pipeline)
    admin = AdminClient(for_confluent(config))
    settings = read_settings(admin, [name])[name]
    return wrong_settings(f"topic {name}", settings, _replicas(admin, name), REQUIREMENTS)


def repair(config: Mapping[str, Any], pipeline: str) -> list[str]:
    """Put the settings right that would lose records; returns them as ``name=value``."""
    from confluent_kafka.admin import AdminClient

    settings = {setting: _SETTINGS.get(setting, _TWO_REPLICAS) for setting in look(config, pipeline)}
    _set(AdminClient(for_confluent(config)), ledger_topic(pipeline), settings)
    return [f"{setting}={value}" for setting, value in settings.items()]


def _once_known(ask: Callable[[], Answer]) -> Answer:
    """Ask about a topic that was created just now: each broker hears of it a little later, and any of them is asked."""
    from confluent_kafka import KafkaError

    def passes(error: Exception) -> bool:
        return has_code(error, KafkaError.UNKNOWN_TOPIC_OR_PART)

    return retry_while(passes, ask, seconds=_TIMEOUT_SECONDS, poll_seconds=_PAUSE_SECONDS)


def _replicas(admin: AdminClient, name: str) -> int:
    """Return how many replicas the topic's one partition has.

    :raises SettingRefusedError: when there are more partitions
    """
    from confluent_kafka import TopicCollection

    described = admin.describe_topics(TopicCollection([name]), request_timeout=_TIMEOUT_SECONDS)[name].result()
    if len(described.partitions) != 1:
        raise SettingRefusedError(
            f"number of partitions of topic {name}", len(described.partitions), 1, "commits would have no order"
        )
    return len(described.partitions[0].replicas)


def _set(admin: AdminClient, name: str, settings: Mapping[str, str]) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries = [
        ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET) for setting, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    admin.incremental_alter_configs([resource], request_timeout=_TIMEOUT_SECONDS)[resource].result()
