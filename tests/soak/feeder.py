"""Sends the bookings, one after the other, at a modest rate, whatever happens to the brokers."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tests.crash_matrix.observer import QUIET
from tests.soak.names import BOOKINGS_TOPIC, PARTITIONS
from tests.soak.script import Script

_TICK_SECONDS = 0.25
_FLUSH_SECONDS = 300.0


class Feeder:
    """A thread that sends.

    The producer is idempotent and never gives a record up, so that each is in the topic once, and those of an account
    in order: a partition has the bookings ``id % PARTITIONS``, and accounts divide into partitions.

    :param rate: bookings a second
    :ivar sent: how many bookings were given to the producer
    """

    def __init__(self, config: Mapping[str, Any], script: Script, rate: int) -> None:
        assert script.accounts % PARTITIONS == 0
        self.sent = 0
        self._script, self._rate = script, rate
        self._producer = Producer(
            {**config, **QUIET, "enable.idempotence": True, "message.timeout.ms": 0, "linger.ms": 20}
        )
        self._next = list(range(PARTITIONS))  # of each partition, the booking whose acknowledgement is due
        self._failure: KafkaError | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="feeder", daemon=True)

    @property
    def acknowledged(self) -> int:
        """All bookings before this one are in the topic."""
        return min(self._next)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> int:
        """Send no more, and wait until all is acknowledged; returns how many bookings there are.

        :raises KafkaException: when one was given up
        """
        self._ended.set()
        self._thread.join()
        left = self._producer.flush(_FLUSH_SECONDS)
        self.check()
        assert left == 0, f"{left} bookings are not acknowledged after {_FLUSH_SECONDS:.0f} s"
        return self.sent

    def check(self) -> None:
        """See that nothing was given up.

        :raises KafkaException: when something was
        """
        if self._failure is not None:
            raise KafkaException(self._failure)

    def _work(self) -> None:
        began = time.monotonic()
        while not self._ended.wait(_TICK_SECONDS):
            due = int((time.monotonic() - began) * self._rate)
            self._send(due)
            self._producer.poll(0)

    def _send(self, up_to: int) -> None:
        for booking, account, _, amount, _ in self._script.rows(np.arange(self.sent, up_to)).tolist():
            value = f'{{"id":{booking},"account":"{account}","amount":{amount / 100:.2f}}}'
            self._producer.produce(
                BOOKINGS_TOPIC,
                key=str(account),
                value=value,
                partition=booking % PARTITIONS,
                on_delivery=self._acknowledge,
            )
            self.sent += 1

    def _acknowledge(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failure = error
            return
        partition = message.partition()
        assert partition is not None
        self._next[partition] += PARTITIONS
