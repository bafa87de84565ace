"""Whether all transactions in topics at a point of time are decided, and which producers keep them open.

Everybody's producers count. No group is joined and nothing is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.kafka.stable_offsets import MissingPartitionError, StableOffsets
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition, by_topic

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.kafka.cluster_transactions import Hanging, Transaction

#: {topic: {partition: high watermark}}, as JSON has it
Targets = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, kw_only=True)
class Undecided:
    """A partition in which something below the target is not decided."""

    topic_partition: TopicPartition
    last_stable: int
    target: int

    def __str__(self) -> str:
        topic, partition = self.topic_partition
        return f"{topic}-{partition} is decided up to offset {self.last_stable} of {self.target}"


def present(config: Mapping[str, Any], topics: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return the high watermarks of all partitions of topics.

    :param config: client configuration in librdkafka's names
    :raises ExactlyOnceError: when a topic does not exist
    """
    offsets = StableOffsets(config)
    ends = by_topic(offsets.ends(offsets.partitions(topics)))
    return {topic: {str(number): end for number, end in partitions.items()} for topic, partitions in ends.items()}


class Decisions:
    """Which transactions in topics of one cluster are decided, for many waiters at once.

    :param config: client configuration in librdkafka's names
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config: Final = config
        self._offsets: Final = StableOffsets(config)

    def undecided(self, wanted: Mapping[str, Targets]) -> dict[str, list[Undecided] | ExactlyOnceError]:
        """Return the partitions whose last stable offset has not passed the target.

        :param wanted: {waiter: targets}
        :return: {waiter: partitions}; an error where a topic is gone, or ends before the target and so was made anew
        """
        try:
            return self._undecided(wanted)
        except MissingPartitionError as error:
            if len(wanted) == 1:
                return dict.fromkeys(wanted, error)
        return {name: answer for waiter in wanted for name, answer in self.undecided({waiter: wanted[waiter]}).items()}

    def blockers(self, waiting: Iterable[Undecided]) -> Blockers:
        """Find the transactions that hold partitions back."""
        return Blockers(self._config, waiting)

    def _undecided(self, wanted: Mapping[str, Targets]) -> dict[str, list[Undecided] | ExactlyOnceError]:
        wanted_ends = {name: _by_partition(targets) for name, targets in wanted.items()}
        stable = self._offsets.last_stable(
            {partition for partitions in wanted_ends.values() for partition in partitions}
        )
        undecided = {
            name: [partition for partition in sorted(partitions) if stable[partition] < partitions[partition]]
            for name, partitions in wanted_ends.items()
        }
        ends = self._offsets.ends({partition for partitions in undecided.values() for partition in partitions})
        answers: dict[str, list[Undecided] | ExactlyOnceError] = {}
        for name, partitions in undecided.items():
            targets = wanted_ends[name]
            truncated = [partition for partition in partitions if ends[partition] < targets[partition]]
            if truncated:
                answers[name] = _other_topic(truncated[0], ends[truncated[0]], targets[truncated[0]])
            else:
                answers[name] = [
                    Undecided(topic_partition=partition, last_stable=stable[partition], target=targets[partition])
                    for partition in partitions
                ]
        return answers


class Blockers:
    """The transactions that hold partitions back, looked up once for all waiters.

    :param config: client configuration in librdkafka's names
    :param waiting: for what all of them wait
    """

    def __init__(self, config: Mapping[str, Any], waiting: Iterable[Undecided]) -> None:
        from airflow_provider_exactlyonce.kafka.cluster_transactions import Transactions
        from airflow_provider_exactlyonce.kafka.wire import UnansweredError, WireClient

        self._unknown = ""
        self._hanging: list[Hanging] = []
        self._known: dict[int, Transaction] = {}
        partitions = {undecided.topic_partition for undecided in waiting}
        if not partitions:
            return
        try:
            with WireClient(config) as client:
                transactions = Transactions(client)
                self._hanging = transactions.open_in(partitions)
                self._known = {transaction.producer_id: transaction for transaction in transactions.open()}
        except (ExactlyOnceError, UnansweredError) as error:
            self._unknown = f"the transaction that holds it back is unknown: {error}"

    def of(self, waiting: Sequence[Undecided]) -> list[str]:
        """Return a sentence for each transaction that holds these partitions back, with its age, oldest first."""
        if self._unknown:
            return [self._unknown]
        targets = {undecided.topic_partition: undecided.target for undecided in waiting}
        by_producer: dict[int, list[Hanging]] = {}
        for hanging in self._hanging:
            if hanging.first_offset < targets.get(hanging.topic_partition, 0):
                by_producer.setdefault(hanging.producer_id, []).append(hanging)
        order = sorted(
            by_producer, key=lambda number: self._known[number].started_milliseconds if number in self._known else 0
        )
        return [_sentence(self._known.get(number), by_producer[number]) for number in order]


def _by_partition(targets: Targets) -> dict[TopicPartition, int]:
    return {(topic, int(number)): end for topic, ends in targets.items() for number, end in ends.items()}


def _other_topic(partition: TopicPartition, end: int, wanted: int) -> RefusedError:
    return RefusedError(
        f"{partition[0]}-{partition[1]} ends at offset {end} and has ended at {wanted} before: the topic was deleted "
        "and made again, or has lost records; start over with what is in it now: clear the task"
    )


def _sentence(transaction: Transaction | None, parts: Sequence[Hanging]) -> str:
    where = ", ".join(f"{part.topic}-{part.partition} from offset {part.first_offset}" for part in parts)
    if transaction is not None:
        age = transaction.age_seconds()
        since = "just opened" if age is None else f"open for {age:.0f} s"
        ends = f"it times out after {transaction.timeout_milliseconds / 1000:.0f} s"
        return f"transactional id {transaction.transactional_id} ({since}, {transaction.state}; {ends}) holds {where}"
    silent = f"has not written for {min(part.silent_seconds() for part in parts):.0f} s"
    return (
        f"producer id {parts[0].producer_id}, which {silent} and whose transactional id can't be seen, holds {where}: "
        "it hangs (exactlyonce transactions hanging), or the Kafka user may not describe it"
    )
