"""Reads the settings of topics, and checks them against the requirements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.exceptions import SettingRefusedError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_TIMEOUT_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Requirement:
    """A requirement of a topic's setting.

    :param holds: whether a value will do for a topic with so many replicas
    :param required: which will, in words; ``{replicas}`` stands for their number, in ``why`` too
    :param why: one clause on what would break
    """

    setting: str
    holds: Callable[[str, int], bool]
    required: str
    why: str


CLEAN_ELECTION: Final = Requirement(
    "unclean.leader.election.enable",
    lambda value, replicas: value == "false",
    "false",
    "a leader that lacks committed records could be elected, and they would be gone",
)
WRITABLE: Final = Requirement(
    "min.insync.replicas",
    lambda value, replicas: int(value) <= replicas,
    "at most {replicas}",
    "the topic has {replicas} replicas, so nothing could ever be written; lower it or add replicas",
)


def wrong_settings(
    topic: str, settings: Mapping[str, str], replicas: int, requirements: Iterable[Requirement]
) -> dict[str, SettingRefusedError]:
    """Return which settings of a topic are not as required, and why each matters.

    :param topic: how messages call it
    :param settings: all of its settings, the cluster's defaults included
    :param replicas: of the partition that has fewest
    """
    return {
        requirement.setting: SettingRefusedError(
            f"{requirement.setting} of {topic}",
            settings[requirement.setting],
            requirement.required.format(replicas=replicas),
            requirement.why.format(replicas=replicas),
        )
        for requirement in requirements
        if not requirement.holds(settings[requirement.setting], replicas)
    }


def check_settings(topic: str, settings: Mapping[str, str], replicas: int, requirements: Iterable[Requirement]) -> None:
    """Check a topic's settings; the parameters are those of :func:`wrong_settings`.

    :raises SettingRefusedError: for the first that is not as required
    """
    for error in wrong_settings(topic, settings, replicas, requirements).values():
        raise error


def read_settings(admin: AdminClient, topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the settings of topics, which exist, the cluster's defaults included.

    :raises KafkaException: when the cluster does not answer, or they may not be read
    """
    from confluent_kafka.admin import ConfigResource, ResourceType

    resources = {topic: ConfigResource(ResourceType.TOPIC, topic) for topic in topics}
    answers = admin.describe_configs(list(resources.values()), request_timeout=_TIMEOUT_SECONDS) if resources else {}
    return {
        topic: {name: entry.value for name, entry in answers[resource].result().items()}
        for topic, resource in resources.items()
    }
