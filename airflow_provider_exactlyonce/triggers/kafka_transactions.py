"""Waits in the triggerer until all transactions in topics are decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.triggers.polling import PollingTrigger
from airflow_provider_exactlyonce.triggers.shared_poller import Checker, CheckResult, Subject

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.transactions.pending import Blockers, Decisions, Undecided

_NAMED: Final = 5


class TransactionsChecker(Checker):
    """Asks for the last stable offsets of all partitions at once, and at times for the producers that hold them."""

    def __init__(self, conn_id: str) -> None:
        super().__init__(conn_id)
        self._decisions: Decisions | None = None

    def _check(self, subjects: Mapping[str, Subject], *, diagnose: bool) -> Mapping[str, CheckResult | Exception]:
        from airflow_provider_exactlyonce.hooks.kafka import client_config
        from airflow_provider_exactlyonce.transactions.pending import Decisions

        if self._decisions is None:
            self._decisions = Decisions(client_config(self.conn_id))
        results: dict[str, CheckResult | Exception] = {}
        waiting: dict[str, list[Undecided]] = {}
        targets = {name: subject["targets"] for name, subject in subjects.items()}
        for name, answer in self._decisions.undecided(targets).items():
            if isinstance(answer, ExactlyOnceError):
                results[name] = answer
            elif answer:
                waiting[name] = answer
            else:
                offsets = {topic: dict(partitions) for topic, partitions in targets[name].items()}
                results[name] = CheckResult(found={"offsets": offsets})
        blockers = self._decisions.blockers(chain.from_iterable(waiting.values())) if diagnose else None
        for name, undecided in waiting.items():
            results[name] = CheckResult(missing=_sentence(undecided, blockers))
        return results

    def _close(self) -> None:
        self._decisions = None


class KafkaTransactionsTrigger(PollingTrigger):
    """Fire when the last stable offsets of topics have passed a target, or the deadline has passed.

    :param targets: {topic: {partition: offset}}
    :param kafka_conn_id: connection of type ``kafka``
    :param poll_interval: seconds between two checks
    :param deadline: seconds since the epoch
    """

    checker = TransactionsChecker


def _sentence(undecided: Sequence[Undecided], blockers: Blockers | None) -> str:
    partitions = [str(partition) for partition in undecided[:_NAMED]]
    more = [f"{len(undecided) - _NAMED} partitions more"] if len(undecided) > _NAMED else []
    return "; ".join([*partitions, *more, *(blockers.of(undecided) if blockers else [])])
