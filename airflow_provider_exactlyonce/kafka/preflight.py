"""Checks of a cluster and its topics before a pipeline touches them.

Nothing here has a side effect. A wrong setting is refused, with its name, its value and the fix. A condition that may
pass by itself (a partition without a leader, replicas that are catching up) is waited for, for a bounded time. A fact
that can't be read for lack of a right is logged only, because the guarantee does not depend on our reading it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import kafka.errors
from kafka.admin import ConfigResource, ConfigResourceType

from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    ExactlyOnceError,
    RecordRefusedError,
    RefusedError,
    SettingRefusedError,
)
from airflow_provider_exactlyonce.kafka.broker_compression import growth
from airflow_provider_exactlyonce.kafka.retry import until_definite
from airflow_provider_exactlyonce.kafka.topic_settings import CLEAN_ELECTION, WRITABLE, check_settings
from airflow_provider_exactlyonce.kafka.wire import NO_PRODUCER, Code, UnansweredError, WireClient, describe
from airflow_provider_exactlyonce.polling import retry_while

log = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 30.0
_NEW_TOPIC_PATIENCE_SECONDS: Final = 3.0  # until all brokers know a topic that has just been made
_PAUSE_SECONDS: Final = 0.25

#: The requests that ``wire.py`` sends, by their number in the protocol, and the version that it needs of each.
REQUESTS: Final[Mapping[str, tuple[int, int]]] = {
    "Produce": (0, 11),
    "Fetch": (1, 11),
    "Metadata": (3, 12),
    "InitProducerId": (22, 5),
    "AddPartitionsToTxn": (24, 3),
    "AddOffsetsToTxn": (25, 3),
    "EndTxn": (26, 4),
    "TxnOffsetCommit": (28, 3),
}
_FIRST_RELEASE: Final = "Kafka 3.8"
_FIRST_RELEASE_OF_TOPIC_IDS: Final = "Kafka 3.1"

_BROKER_SETTINGS: Final = (
    "transaction.max.timeout.ms",
    "transaction.partition.verification.enable",
    "transaction.state.log.min.isr",
    "transaction.state.log.replication.factor",
)
_TOPIC_SETTINGS: Final = (
    "cleanup.policy",
    "compression.type",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.insync.replicas",
    "unclean.leader.election.enable",
)


class TopicUse(Enum):
    """A pipeline's use of a topic; the value is its name in messages."""

    SOURCE = "source"
    SINK = "sink"
    LEDGER = "ledger"


#: Without the settings of a sink its bodies can't be cut to size; those of a ledger keep its commits.
_RIGHTS: Final[Mapping[TopicUse, tuple[str, ...]]] = {
    TopicUse.SOURCE: ("READ",),
    TopicUse.SINK: ("WRITE", "DESCRIBE_CONFIGS"),
    TopicUse.LEDGER: ("READ", "WRITE", "DESCRIBE_CONFIGS"),
}


@dataclass(frozen=True, kw_only=True)
class TopicFacts:
    """A topic as it was found by :func:`check_topics`.

    :param partitions: how many it has
    :param settings: its settings, empty when they may not be read (which is accepted of a source only)
    """

    name: str
    topic_id: str
    partitions: int
    settings: Mapping[str, str]

    @property
    def batch_bytes_maximum(self) -> int:
        """The size of the largest record batch that it takes, in bytes."""
        return int(self.settings["max.message.bytes"])

    @property
    def full_batch_bytes(self) -> int:
        """The size of the largest record batch that it takes whatever is in it, in bytes as it is sent.

        Where the topic has a codec of its own, the broker compresses what comes otherwise, and compares the new size
        with its limit; records that don't shrink grow.
        """
        limit = self.batch_bytes_maximum
        return limit - growth(self.settings["compression.type"], limit)

    def keeps(self, codec: str) -> bool:
        """Whether its batches stay compressed as they are sent; otherwise their size comes from the broker's codec."""
        return self.settings["compression.type"] in ("producer", codec)

    def check_timestamps(self, first_milliseconds: int, last_milliseconds: int, now_milliseconds: int) -> None:
        """Check the oldest and the newest timestamp of records that are to be written.

        :raises RecordRefusedError: when the topic takes only timestamps nearer to the present
        """
        if self.settings["message.timestamp.type"] != "CreateTime":
            return  # the broker sets its own
        for name, timestamp, distance in (
            ("message.timestamp.before.max.ms", first_milliseconds, now_milliseconds - first_milliseconds),
            ("message.timestamp.after.max.ms", last_milliseconds, last_milliseconds - now_milliseconds),
        ):
            if distance > int(self.settings[name]):
                side = "before" if "before" in name else "after"
                raise RecordRefusedError(
                    f"a record for topic {self.name} has timestamp {timestamp} ({_utc(timestamp)}), {distance} ms "
                    f"{side} now; {name} of the topic is {self.settings[name]}: raise it, or fix the timestamp column"
                )


def check_cluster(
    client: WireClient,
    *,
    transactional_id: str,
    transaction_timeout_milliseconds: int,
    user: str | None = None,
    patience_seconds: float = _PATIENCE_SECONDS,
) -> None:
    """Check brokers and the transactional id.

    Both levels of the feature ``transaction.version``, 0 and 2, are accepted.

    :param transactional_id: the one that the pipeline will take; nothing is done to it
    :param transaction_timeout_milliseconds: from the first record to the commit of one batch
    :param user: the Kafka user, for messages
    :param patience_seconds: how long a coordinator that isn't there yet is waited for
    :raises RefusedError: when a broker is too old, a setting breaks the protocol, or a right is missing
    :raises ExactlyOnceError: when there is no answer
    """
    brokers = [broker for broker in _ask(client.admin.describe_cluster)["brokers"] if not broker.get("is_fenced")]
    for broker in brokers:
        _check_version(client, broker, REQUESTS, _FIRST_RELEASE)
    _check_brokers(client, [broker["broker_id"] for broker in brokers], transaction_timeout_milliseconds)
    _check_transactional_id(client, transactional_id, user, patience_seconds)


def check_source_cluster(client: WireClient) -> None:
    """Check the brokers of a cluster that is only read: they have to tell a topic from one that was made again.

    :raises RefusedError: when a broker is too old
    :raises ExactlyOnceError: when there is no answer
    """
    for broker in _ask(client.admin.describe_cluster)["brokers"]:
        if not broker.get("is_fenced"):
            _check_version(client, broker, {"Metadata": REQUESTS["Metadata"]}, _FIRST_RELEASE_OF_TOPIC_IDS)


def check_topics(
    client: WireClient,
    *,
    sources: Iterable[str] = (),
    sinks: Iterable[str] = (),
    ledger: str | None = None,
    user: str | None = None,
    allow_single_replica: bool = False,
    patience_seconds: float = _PATIENCE_SECONDS,
    where: str = "this cluster",
) -> dict[str, TopicFacts]:
    """Check topics, and return their facts by name. For an absent ledger, check that its topic can be made.

    One replica is accepted on a cluster of one broker, which can't have more and is for development.

    :param user: the Kafka user, for messages
    :param allow_single_replica: accept one replica on any cluster
    :param where: the cluster's name in messages
    :param patience_seconds: how long leaders and in-sync replicas that are missing are waited for
    :raises RefusedError: when a topic does not exist, a setting breaks the guarantee, or a right is missing
    :raises ExactlyOnceError: when there is no answer, or replicas are missing for longer
    """
    uses = {**dict.fromkeys(sources, TopicUse.SOURCE), **dict.fromkeys(sinks, TopicUse.SINK)}
    if ledger is not None:
        uses[ledger] = TopicUse.LEDGER
    began = time.monotonic()
    while True:
        settings = _topic_settings(client, uses)
        described = {topic["name"]: topic for topic in _ask(lambda: client.admin.describe_topics(list(uses)))}
        _check_rights(described, uses, settings, user)
        absent = [name for name, topic in described.items() if topic["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION]
        if ledger is not None and ledger in absent:
            _check_ledger_can_be_made(client, ledger, user, allow_single_replica)
            absent.remove(ledger)
            del described[ledger], uses[ledger]
        if absent and time.monotonic() - began >= min(patience_seconds, _NEW_TOPIC_PATIENCE_SECONDS):
            raise RefusedError(
                f"{', '.join(f'{uses[name].value} topic {name} does not exist' for name in absent)} on {where}; "
                "create it with the partitions that you want"
            )
        for name in described.keys() - absent:
            _check_topic(described[name], uses[name], settings[name])
        waiting = [text for name, use in uses.items() for text in _waiting_for(described[name], use, settings[name])]
        if not waiting:
            break
        if time.monotonic() - began >= patience_seconds:
            raise ExactlyOnceError(f"{'; '.join(waiting)}, for {patience_seconds:.0f} s: bring the brokers back")
        if not absent:
            log.warning("waiting: %s", "; ".join(waiting))
        time.sleep(_PAUSE_SECONDS)
    replicas = {
        name: min(len(partition["replica_nodes"]) for partition in described[name]["partitions"]) for name in uses
    }
    _check_replicas(client, replicas, allow_single_replica)
    return {
        name: TopicFacts(
            name=name,
            topic_id=str(described[name]["topic_id"]),
            partitions=len(described[name]["partitions"]),
            settings=settings[name],
        )
        for name in uses
    }


def check_topic_ids(client: WireClient, topic_ids: Mapping[str, str], *, where: str = "this cluster") -> dict[str, int]:
    """Check that topics are still those that the batch began with; returns how many partitions each has now.

    One request; called right before a commit. A topic that was deleted and made again in between would hold a part of
    the batch, or none of it.

    :param topic_ids: {topic: id}
    :param where: the cluster's name in messages
    :raises RefusedError: naming the topic that was recreated
    :raises BatchFailedError: when there is no answer, or a topic is gone
    """
    try:
        described = client.admin.describe_topics(list(topic_ids))
    except kafka.errors.KafkaError as error:
        text = f"ids of the topics {', '.join(topic_ids)} on {where}: {type(error).__name__}: {error}"
        raise BatchFailedError(text) from error
    for topic in described:
        name, code = topic["name"], topic["error_code"]
        if code != Code.NONE:
            raise BatchFailedError(f"topic {name} on {where}, which this batch uses: {describe(code)}")
        if str(topic["topic_id"]) != topic_ids[name]:
            raise RefusedError(
                f"topic {name} was recreated while the pipeline ran: its id is {topic['topic_id']}, and was "
                f"{topic_ids[name]}. What it held is gone; start a new pipeline, or put the topic back"
            )
    return {topic["name"]: len(topic["partitions"]) for topic in described}


def check_group(client: WireClient, group: str, *, user: str | None = None) -> None:
    """Check that a consumer group, which is to get a pipeline's offsets, is ours to write and has no members.

    A coordinator that isn't there yet is waited for.

    :param user: the Kafka user, for messages
    :raises RefusedError: when it has members, or a right is missing
    :raises ExactlyOnceError: when there is no answer
    """

    def ask() -> dict[str, Any]:
        try:
            return dict(client.admin.describe_groups([group])[group])
        except kafka.errors.GroupAuthorizationFailedError as error:
            raise missing_rights(user, [f"READ on group {group}"]) from error

    def passes(error: Exception) -> bool:
        return isinstance(error, kafka.errors.KafkaError)

    try:
        description = retry_while(passes, ask, seconds=_PATIENCE_SECONDS, poll_seconds=_PAUSE_SECONDS)
    except kafka.errors.KafkaError as error:
        raise ExactlyOnceError(f"the coordinator of group {group}: {type(error).__name__}: {error}") from error
    if description["error"] is not None:
        return  # it has not been used yet
    if description["group_state"] not in ("Empty", "Dead"):
        raise RefusedError(
            f"consumer group {group} has members (it is {description['group_state']}), and the pipeline's progress "
            "would mix with theirs; name a group that nobody consumes with in KafkaSink(offsets_group=…)"
        )
    if "READ" not in description["authorized_operations"]:
        raise missing_rights(user, [f"READ on group {group}"])


def missing_rights(user: str | None, rights: Iterable[str]) -> RefusedError:
    """Return the error for rights that the Kafka user lacks, such as ``"WRITE on topic t"``."""
    who = f"the Kafka user {user}" if user else "the Kafka user"
    return RefusedError(
        f"{who} lacks the right {', '.join(rights)}; grant it with an ACL (`exactlyonce help security` lists all)"
    )


def _check_version(
    client: WireClient, broker: Mapping[str, Any], requests: Mapping[str, tuple[int, int]], first_release: str
) -> None:
    versions = _ask(lambda: client.admin.get_broker_version_data(broker["broker_id"])).api_versions
    for name, (number, needed) in requests.items():
        highest = versions[number][1] if number in versions else None
        if highest is None or highest < needed:
            raise SettingRefusedError(
                f"the highest version of {name} of broker {broker['broker_id']} ({broker['host']}:{broker['port']})",
                highest,
                f"at least {needed}",
                f"upgrade the broker to {first_release} or newer",
            )


def _check_brokers(client: WireClient, brokers: list[int], transaction_timeout_milliseconds: int) -> None:
    wanted = dict.fromkeys(_BROKER_SETTINGS)
    resources = [ConfigResource(ConfigResourceType.BROKER, str(broker), configs=wanted) for broker in brokers]
    answer = _ask(lambda: client.admin.describe_configs(resources, config_filter="all")).get("broker", {})
    if len(brokers) == 1:
        log.warning("this cluster has one broker: for development, since nothing survives the loss of its disk")
    for broker in brokers:
        settings = {name: config["value"] for name, config in answer.get(str(broker), {}).items()}
        if not settings:
            log.warning("settings of broker %d can't be read (DESCRIBE_CONFIGS on the cluster): not checked", broker)
            continue
        limit_milliseconds = int(settings["transaction.max.timeout.ms"])
        if transaction_timeout_milliseconds > limit_milliseconds:
            raise SettingRefusedError(
                "transaction_timeout_seconds of KafkaSink",
                transaction_timeout_milliseconds // 1000,
                f"at most {limit_milliseconds // 1000}",
                f"transaction.max.timeout.ms of broker {broker} is {limit_milliseconds}; lower one or raise the other",
            )
        if settings.get("transaction.partition.verification.enable") == "false":
            raise SettingRefusedError(
                f"transaction.partition.verification.enable of broker {broker}",
                "false",
                "true",
                "a late write of an aborted batch could open a transaction that nobody ends",
            )
        for name in ("transaction.state.log.replication.factor", "transaction.state.log.min.isr"):
            if settings.get(name) == "1" and len(brokers) > 1:
                log.warning("%s of broker %d is 1: decisions on transactions do not survive its disk", name, broker)


def _check_transactional_id(
    client: WireClient, transactional_id: str, user: str | None, patience_seconds: float
) -> None:
    def ask() -> int:
        return client.init_producer_id(transactional_id, NO_PRODUCER, 0)[0]  # no valid time-out: nothing happens

    try:
        code = until_definite(ask, timeout_seconds=patience_seconds)
    except UnansweredError as error:
        raise ExactlyOnceError(f"the coordinator of transactional.id {transactional_id}: {error}") from error
    if code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        raise missing_rights(user, [f"WRITE on transactional id {transactional_id}"])
    if code != Code.INVALID_TRANSACTION_TIMEOUT:
        raise ExactlyOnceError(f"the coordinator of transactional.id {transactional_id} answered {describe(code)}")


def _topic_settings(client: WireClient, topics: Iterable[str]) -> dict[str, dict[str, str]]:
    wanted = dict.fromkeys(_TOPIC_SETTINGS)
    resources = [ConfigResource(ConfigResourceType.TOPIC, name, configs=wanted) for name in topics]
    answer = _ask(lambda: client.admin.describe_configs(resources, config_filter="all")).get("topic", {})
    return {name: {setting: config["value"] for setting, config in answer.get(name, {}).items()} for name in topics}


def _check_rights(
    described: Mapping[str, Any], uses: Mapping[str, TopicUse], settings: Mapping[str, Any], user: str | None
) -> None:
    missing = []
    for name, use in uses.items():
        granted = set(described[name]["authorized_operations"] or ())
        if described[name]["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED:  # then not even this is known of it
            granted = {"DESCRIBE_CONFIGS"} if settings[name] else set()
        lacking = [right for right in _RIGHTS[use] if right not in granted]
        if lacking:
            missing.append(f"{', '.join(lacking)} on topic {name}")
    if missing:
        raise missing_rights(user, missing)


def _check_ledger_can_be_made(client: WireClient, name: str, user: str | None, allow_single_replica: bool) -> None:
    settings = {"num_partitions": 1, "configs": {"cleanup.policy": "compact"}}
    try:
        answer = client.admin.create_topics({name: settings}, validate_only=True)
    except (kafka.errors.TopicAuthorizationFailedError, kafka.errors.ClusterAuthorizationFailedError) as error:
        raise missing_rights(user, [f"CREATE on topic {name}"]) from error
    except kafka.errors.TopicAlreadyExistsError:
        return  # another driver was faster; the ledger's own check follows
    except kafka.errors.KafkaError as error:
        raise RefusedError(f"the ledger's topic {name} can't be made: {type(error).__name__}: {error}") from error
    _check_replicas(client, {name: answer["topics"][0]["replication_factor"]}, allow_single_replica)


def _check_topic(topic: Mapping[str, Any], use: TopicUse, settings: Mapping[str, str]) -> None:
    name = topic["name"]
    if not settings:
        log.warning("settings of %s topic %s can't be read (DESCRIBE_CONFIGS): not checked", use.value, name)
        return
    writable = int(settings["min.insync.replicas"])
    replicas = min((len(partition["replica_nodes"]) for partition in topic["partitions"]), default=writable)
    requirements = (CLEAN_ELECTION,) if use is TopicUse.SOURCE else (CLEAN_ELECTION, WRITABLE)
    check_settings(f"{use.value} topic {name}", settings, replicas, requirements)


def _waiting_for(topic: Mapping[str, Any], use: TopicUse, settings: Mapping[str, str]) -> Iterable[str]:
    if topic["error_code"] != Code.NONE:
        yield f"topic {topic['name']}: {describe(topic['error_code'])}"
        return
    if use is TopicUse.SINK and not settings:  # the right to see them is there, and bodies can't be cut without
        yield f"the cluster does not return the settings of topic {topic['name']}"
    needed = int(settings.get("min.insync.replicas", 1))
    for partition in topic["partitions"]:
        name = f"{topic['name']}-{partition['partition_index']}"
        if partition["leader_id"] < 0:
            yield f"{name} has no leader"
        elif len(partition["isr_nodes"]) < needed:
            yield f"{name} has {len(partition['isr_nodes'])} in-sync replicas and min.insync.replicas is {needed}"


def _check_replicas(client: WireClient, replicas: Mapping[str, int], allow_single_replica: bool) -> None:
    single = [name for name, count in replicas.items() if count == 1]
    if not single or allow_single_replica or len(_ask(client.admin.describe_cluster)["brokers"]) == 1:
        return
    raise SettingRefusedError(
        f"the replication factor of topic {', '.join(single)}",
        1,
        "at least 2",
        "the loss of one disk would lose committed batches; add replicas, or allow it for a development cluster with "
        "--allow-single-replica",
    )


def _ask(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except kafka.errors.KafkaError as error:
        text = f"Kafka did not answer a question on the cluster: {type(error).__name__}: {error}"
        raise ExactlyOnceError(text) from error


def _utc(milliseconds: int) -> str:  # of any year, which a datetime does not have
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(milliseconds / 1000))
