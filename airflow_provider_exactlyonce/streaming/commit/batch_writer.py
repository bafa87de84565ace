"""How the rows of a batch get to Kafka: the part of a commit in which guarantees differ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.ledger.records import SinkRange
from airflow_provider_exactlyonce.streaming.commit.batch_attempt import BatchAttempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, kw_only=True)
class Sums:
    """The totals that a batch attempt has written to Kafka.

    :param rows: records, bad ones left out
    :param digest: sum modulo 2**64 of their xxhash64
    :param bad: records in the topic for bad ones
    """

    rows: int
    digest: int
    bad: int


class BatchWriter(ABC):
    """Writes the rows of one batch attempt after the other. Called by the transaction only, from one thread.

    :attr:`ranges`, :attr:`topics` and :meth:`sums` are of the last :meth:`write`.

    :param attempt: the one at hand
    """

    def __init__(self, attempt: BatchAttempt) -> None:
        self._attempt: Final = attempt

    @abstractmethod
    def prepare(self, result: DataFrame) -> DataFrame:
        """Return the stream that the query runs in the result's place; as a transactional sink's."""

    @abstractmethod
    def write(self, frame: DataFrame) -> None:
        """Run the batch's plan and write its rows; as a transactional sink's."""

    @abstractmethod
    def recompute(self, frame: DataFrame) -> tuple[int, int]:
        """Run the plan without writing to Kafka; returns rows and digest of its share."""

    @property
    @abstractmethod
    def ranges(self) -> Mapping[str, Mapping[int, SinkRange]]:
        """The written ranges, {topic: {partition: range}}; empty when they can't be known."""

    @property
    @abstractmethod
    def topics(self) -> Collection[str]:
        """The topics that were written to, or may have been."""

    @abstractmethod
    def sums(self) -> Sums:
        """Return the totals of the written records."""
