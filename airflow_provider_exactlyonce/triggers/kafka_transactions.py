"""Waits in the triggerer until what is in topics is decided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_exactlyonce.triggers.polling import Look, PollingTrigger, asked


class KafkaTransactionsTrigger(PollingTrigger):
    """Fire when the last stable offsets of topics have passed a target, or the deadline has passed.

    :param targets: {topic: {partition: offset}}
    :param kafka_conn_id: connection of type ``kafka``
    :param poll_interval: seconds between two looks
    :param deadline: seconds since the epoch
    """

    def look(self, *, blame: bool) -> Look:
        """Ask for the last stable offsets, and for who holds them back."""
        return look(self.subject["kafka_conn_id"], self.subject["targets"], blame=blame)


def look(kafka_conn_id: str, targets: Mapping[str, Mapping[str, int]], *, blame: bool) -> Look:
    """Look once; blocks. The sensor's poke and the trigger both come through here.

    :param blame: name the transactions that hold readers back
    :raises ExactlyOnceError: when it can't be said
    """
    return asked(kafka_conn_id, lambda: _look(kafka_conn_id, targets, blame=blame))


def _look(kafka_conn_id: str, targets: Mapping[str, Mapping[str, int]], *, blame: bool) -> Look:
    from airflow_provider_exactlyonce.hooks.kafka import client_config
    from airflow_provider_exactlyonce.transactions import undecided

    config: dict[str, Any] = client_config(kafka_conn_id)
    waiting = undecided.undecided(config, targets)
    if not waiting:
        return Look(found={"offsets": {topic: dict(of) for topic, of in targets.items()}})
    told = [str(one) for one in waiting[:_NAMED]]
    more = [f"{len(waiting) - _NAMED} partitions more"] if len(waiting) > _NAMED else []
    return Look(missing="; ".join([*told, *more, *(undecided.blockers(config, waiting) if blame else [])]))


_NAMED = 5
