"""Watches a pipeline's ledger for an asset: each committed range is an event, at least once.

Airflow stores the event and the watcher's place in two transactions. The place is stored after the event, so a
triggerer that dies in between tells the range again, with the same key; it never leaves one out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.ledger.following import LedgerFollower
    from airflow_provider_exactlyonce.ledger.ranges import Cut, Unit

#: In the asset's state store: where the last range ended whose event Airflow has.
PLACE_KEY: Final = "exactlyonce_place"
#: Ranges that are on their way at once; Airflow fails a watcher that has 1,024 waiting.
_MOST: Final = 100


class CommittedRangesProducer(SharedStreamProducer):
    """Reads the ledger, and stores how far Airflow has got.

    :param watched: the trigger's arguments
    """

    def __init__(self, watched: dict[str, Any]) -> None:
        from airflow.sdk.execution_time.context import AssetStateStoreAccessor

        self._watched: Final = watched
        self._store: Final = AssetStateStoreAccessor(name=watched["asset"])
        self._follower: LedgerFollower | None = None
        self._in_flight = 0

    async def open_stream(self) -> AsyncIterator[tuple[dict[str, Any], Cut]]:
        """Yield each range as JSON, with the cut after it."""
        follower = await self._open()
        while True:
            ranges = []
            if self._in_flight < _MOST:
                ranges = await asyncio.to_thread(follower.ranges, _MOST - self._in_flight)
            for committed, cut in ranges:
                self._in_flight += 1
                yield committed.to_json(), cut
            if not ranges:
                await asyncio.sleep(self._watched["poll_interval"])

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Store the position after the ranges whose events Airflow has stored.

        :raises ExactlyOnceError: when Airflow has not stored an event; it is sent again then
        """
        stored: Cut | None = None
        for item in batch:
            if not item.outcome.is_clean:
                break
            stored = item.broker_payload
        if stored is not None:
            await self._store.aset(PLACE_KEY, stored.to_json())
        if stored is not batch[-1].broker_payload:
            last_stored = stored.commit if stored else "before"
            raise ExactlyOnceError(
                f"{self._watched['asset']}: Airflow has not stored the events after commit {last_stored}"
            )
        self._in_flight -= len(batch)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._follower is not None:
            await asyncio.to_thread(self._follower.close)

    async def _open(self) -> LedgerFollower:
        from airflow_provider_exactlyonce.ledger.ranges import Cut

        stored: Any = await self._store.aget(PLACE_KEY)
        cut = Cut.parse(stored) if stored is not None else None
        self._follower = follower = await asyncio.to_thread(self._make, cut)
        if cut is None:  # before the first event: commits made while nobody watches count
            newest = self._watched["start"] == "newest"
            cut = await asyncio.to_thread(lambda: follower.beginning(newest=newest))
            await self._store.aset(PLACE_KEY, cut.to_json())
        return follower

    def _make(self, cut: Cut | None) -> LedgerFollower:
        from airflow_provider_exactlyonce.hooks.kafka import client_config
        from airflow_provider_exactlyonce.ledger.following import LedgerFollower

        config = client_config(self._watched["kafka_conn_id"])
        return LedgerFollower(config, self._watched["pipeline"], self._watched["partition"], cut)


class CommittedRangesTrigger(BaseEventTrigger):
    """Fire with each committed range of a pipeline.

    :param asset: name of the asset in whose state store the place is kept
    :param pipeline: name of the pipeline
    :param partition: event-time partition with which a range ends, None for a range per commit
    :param start: where to begin when no position is stored yet
    :param kafka_conn_id: connection of type ``kafka``
    :param poll_interval: seconds between two reads of the ledger
    """

    def __init__(
        self,
        *,
        asset: str,
        pipeline: str,
        partition: Unit | None = None,
        start: Literal["newest", "oldest"] = "newest",
        kafka_conn_id: str = "kafka_default",
        poll_interval: float = 1.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asset = asset
        self.pipeline = pipeline
        self.partition = partition
        self.start = start
        self.kafka_conn_id = kafka_conn_id
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        names = ("asset", "pipeline", "partition", "start", "kafka_conn_id", "poll_interval")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    def shared_stream_key(self) -> Hashable:
        """Return the key of the triggers that share a reader; Airflow confirms events of shared streams only."""
        return ("exactlyonce", self.asset, self.pipeline, self.partition, self.kafka_conn_id)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """Return the producer, which reads the ledger."""
        return CommittedRangesProducer(kwargs)

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Fire with every range."""
        async for payload in shared_stream:
            yield TriggerEvent(payload)  # type: ignore[no-untyped-call]

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Never run: it always shares a stream.

        :raises RuntimeError: always
        """
        raise RuntimeError(f"the watcher of {self.asset} runs in a triggerer only, as a shared stream")
        yield  # type: ignore[unreachable]  # it has to be a generator
