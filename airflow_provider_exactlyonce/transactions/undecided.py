"""Whether everything that was in topics at a point of time is decided, and who keeps it from being so.

Everybody's producers count. No group is joined and nothing is committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.kafka.stable_offsets import Place, StableOffsets

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.kafka.transactions import Hanging, Transaction

#: {topic: {partition: high watermark}}, as JSON has it
Targets = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, kw_only=True)
class Undecided:
    """A partition in which something below the target is not decided."""

    topic: str
    partition: int
    last_stable: int
    target: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} is decided up to offset {self.last_stable} of {self.target}"


def present(config: Mapping[str, Any], topics: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return the high watermarks of all partitions of topics.

    :param config: client configuration in librdkafka's names
    :raises ExactlyOnceError: when a topic does not exist
    """
    offsets = StableOffsets(config)
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), end in offsets.ends(offsets.partitions(topics)).items():
        found.setdefault(topic, {})[str(partition)] = end
    return found


def undecided(config: Mapping[str, Any], targets: Targets) -> list[Undecided]:
    """Return the partitions whose last stable offset has not passed the target.

    :param config: client configuration in librdkafka's names
    :raises RefusedError: when a topic ends before the target: it is not the one that was looked at
    """
    wanted = {(topic, int(number)): end for topic, of in targets.items() for number, end in of.items()}
    offsets = StableOffsets(config)
    stable = offsets.last_stable(wanted)
    behind = [place for place in sorted(wanted) if stable[place] < wanted[place]]
    for place, end in offsets.ends(behind).items():
        if end < wanted[place]:
            raise RefusedError(
                f"{place[0]}-{place[1]} ends at offset {end} and has ended at {wanted[place]} before: the topic was "
                "deleted and made again, or has lost records; start over with what is in it now: clear the task"
            )
    return [
        Undecided(topic=place[0], partition=place[1], last_stable=stable[place], target=wanted[place])
        for place in behind
    ]


def blockers(config: Mapping[str, Any], waiting: Sequence[Undecided]) -> list[str]:
    """Say which transactions hold partitions back, and for how long they have, a sentence each, oldest first.

    :param config: client configuration in librdkafka's names
    """
    from airflow_provider_exactlyonce.kafka.transactions import Transactions
    from airflow_provider_exactlyonce.kafka.wire import UnansweredError, WireClient

    targets: dict[Place, int] = {(one.topic, one.partition): one.target for one in waiting}
    try:
        with WireClient(config) as client:
            transactions = Transactions(client, config)
            inside = [one for one in transactions.open_in(targets) if one.first_offset < targets[_place(one)]]
            known = {one.producer_id: one for one in transactions.open()}
    except (ExactlyOnceError, UnansweredError) as error:
        return [f"who holds it back can't be said: {error}"]
    held: dict[int, list[Hanging]] = {}
    for one in inside:
        held.setdefault(one.producer_id, []).append(one)
    order = sorted(held, key=lambda number: known[number].started_milliseconds if number in known else 0)
    return [_sentence(known.get(number), held[number]) for number in order]


def _place(one: Hanging) -> Place:
    return one.topic, one.partition


def _sentence(transaction: Transaction | None, parts: Sequence[Hanging]) -> str:
    where = ", ".join(f"{one.topic}-{one.partition} from offset {one.first_offset}" for one in parts)
    if transaction is not None:
        age = transaction.age_seconds()
        since = "just opened" if age is None else f"open for {age:.0f} s"
        ends = f"it times out after {transaction.timeout_milliseconds / 1000:.0f} s"
        return f"transactional id {transaction.transactional_id} ({since}, {transaction.state}; {ends}) holds {where}"
    written = max(one.written_milliseconds for one in parts)
    silent = f"has not written for {max(0.0, time.time() - written / 1000):.0f} s"
    return (
        f"producer id {parts[0].producer_id}, which {silent} and whose transactional id can't be seen, holds {where}: "
        "it hangs (exactlyonce transactions hanging), or the Kafka user may not describe it"
    )
