"""Follows the ledger, as anybody could beside the DAG."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from demo import topics
from demo.history import SOURCE_TOPIC


class LedgerWatch:
    """Says which run has claimed the pipeline, and shows how many records are committed.

    :param config: Kafka client configuration
    :param progress: called with the number of records that are committed, and a text
    :param say: called once for each thing that happens
    :ivar run: the newest run, 0 for none yet
    :ivar commit: the newest commit, None for none yet
    """

    def __init__(
        self, pipeline: str, config: Mapping[str, Any], progress: Callable[[int, str], None], say: Callable[[str], None]
    ) -> None:
        self.run = 0
        self.commit: CommitRecord | None = None
        self._pipeline = pipeline
        self._config = {**config, **topics.QUIET}
        self._reader = LedgerReader(self._config, pipeline)
        self._progress = progress
        self._say = say
        self._ends: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def reconnect(self) -> None:
        """Ask with new clients, which know of no broker that is gone."""
        self._reader.close()
        self._reader = LedgerReader(self._config, self._pipeline)

    def look(self) -> None:
        """Look once, and tell what is new."""
        tail = self._reader.tail()
        if tail is None or tail.claim is None:
            self._progress(0, "records committed · the driver starts")
            return
        if tail.claim.run > self.run:
            self.run = tail.claim.run
            self._say(f"run {self.run} has claimed the pipeline, after commit {tail.claim.base_commit}")
        if tail.commit:
            self.commit = tail.commit
            self._ends.update({partition: end for partition, (_, end) in tail.commit.source[SOURCE_TOPIC].items()})
        number = tail.commit.commit if tail.commit else 0
        self._progress(sum(self._ends.values()), f"records committed · commit {number} · run {self.run}")
