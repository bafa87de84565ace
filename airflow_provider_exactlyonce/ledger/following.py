"""Follows a ledger from a cut on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from airflow_provider_exactlyonce.ledger.ranges import CommittedRange, Cut, Cutter, Unit
from airflow_provider_exactlyonce.ledger.reader import LedgerConnections, LedgerReader
from airflow_provider_exactlyonce.ledger.records import CommitRecord, ledger_topic

log = logging.getLogger(__name__)

#: Of no topic: a ledger that is not there yet.
_NO_TOPIC: Final = ""


class LedgerFollower:
    """Gives the ranges of a pipeline's ledger one after the other; blocks while it asks.

    :param config: client configuration in librdkafka's names; ``bootstrap.servers`` is required
    :param pipeline: name of the pipeline
    :param unit: event-time partition with which a range ends, None for a range per commit
    :param cut: where to go on; None for :meth:`beginning`
    """

    def __init__(self, config: Mapping[str, Any], pipeline: str, unit: Unit | None, cut: Cut | None) -> None:
        self.pipeline, self.unit = pipeline, unit
        self._connections = LedgerConnections(config)
        self._reader = LedgerReader(self._connections, pipeline)
        self._end_offset = -1
        self._cutter = Cutter(unit, cut or Cut(topic_id=_NO_TOPIC))
        self._next_offset = self._cutter.cut.offset + 1

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def beginning(self, *, newest: bool) -> Cut:
        """Return the start position for a new follower, and continue from it.

        :param newest: after the newest commit; else before the oldest commit that is kept
        """
        tail = self._reader.tail()
        cut = Cut(topic_id=tail.topic_id if tail else _NO_TOPIC)
        if tail is not None and tail.commit is not None:
            if newest:
                commit, watermark = tail.commit.commit, tail.commit.watermark
                cut = replace(cut, commit=commit, offset=tail.commit_offset, watermark=watermark)
            else:
                cut = replace(cut, commit=tail.place.oldest - 1)
        self._begin(cut)
        return cut

    def ranges(self, most: int) -> list[tuple[CommittedRange, Cut]]:
        """Return the next ranges that are complete, and the cut after each.

        :param most: how many at most
        """
        partition, previous_topic_id = (ledger_topic(self.pipeline), 0), self._cutter.cut.topic_id
        # One request tells that there is nothing new.
        if (
            previous_topic_id != _NO_TOPIC
            and self._connections.offsets.last_stable([partition])[partition] == self._end_offset
        ):
            return []
        tail = self._reader.tail()
        if tail is None:
            return []
        if tail.topic_id != previous_topic_id:
            if previous_topic_id != _NO_TOPIC:
                log.warning("the ledger of %s is another one than before: from its beginning", self.pipeline)
            self._begin(Cut(topic_id=tail.topic_id))
        ranges = list(islice(self._cutter.take(self._commits()), most))
        if len(ranges) < most:
            self._end_offset = tail.end_offset
        return ranges

    def _begin(self, cut: Cut) -> None:
        self._end_offset = -1
        self._cutter = Cutter(self.unit, cut)
        self._next_offset = cut.offset + 1

    def _commits(self) -> Iterator[tuple[int, CommitRecord]]:
        for offset, record in self._reader.records(self._next_offset):
            self._next_offset = offset + 1
            if isinstance(record, CommitRecord) and record.commit > self._cutter.cut.commit:
                yield offset, record
