"""The negative control: the same queries and faults, with Spark's own Kafka writer. It must show duplicates.

Without a ledger a batch is done when Spark says so, and what it owes follows from its offsets in the checkpoint.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from typing_extensions import override

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from tests.crash_matrix.observer import Observer
from tests.crash_matrix.pipeline import JOBS, Pipeline
from tests.crash_matrix.shapes import NO_DATA
from tests.crash_matrix.verdict import Findings, parsed

#: The steps that there are around, and in the middle of, a writer without a protocol.
POINTS = ("after-begin", "during-send", "after-commit")


class StockPipeline(Pipeline):
    """A pipeline whose driver writes with Spark's own sink."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.world.job = str(JOBS / "stock_job.py")
        self.observer.close()
        self.observer = Observer(self.config, self.sink, None)
        self._checkpoint = Checkpoint(self.world.home / "checkpoint")
        self._judged_batch = -1

    @property
    @override
    def last_batch(self) -> int:
        newest = self._checkpoint.newest_commit()
        return -1 if newest is None else newest

    @override
    def is_complete(self, batch: int) -> bool:
        if self.last_batch < batch or self.last_batch != self._checkpoint.newest_offsets():
            return False
        ends = self._ends(self.last_batch)
        if self.shape == NO_DATA and ends != self._ends(self.last_batch - 1):
            return False
        return all(ends.get(partition, 0) >= end for partition, end in self.sent_ends.items())

    @override
    def settle(self, batch: int) -> Findings:
        self.wait(lambda: self.is_complete(batch), f"batch {batch} and all that was sent are done")
        self.wait(self._is_at_rest, "nothing moves")
        owed: Counter[str] = Counter()
        for number in range(self._judged_batch + 1, self.last_batch + 1):
            before = self._ends(number - 1)
            owed += self._model.rows(
                self._events({place: (before.get(place, 0), end) for place, end in self._ends(number).items()})
            )
        self._judged_batch = self.last_batch
        findings = Findings()
        findings.compare(f"up to batch {self._judged_batch}", owed, Counter(map(parsed, self.observer.rows.values())))
        self.observer.rows.clear()
        return findings

    @override
    def stop(self) -> None:
        if self.driver is not None:
            self.kill()

    def _ends(self, batch: int) -> dict[int, int]:
        offsets = self._checkpoint.offsets(batch) if batch >= 0 else None
        return dict(offsets.kafka_ends().get(self.source, {})) if offsets else {}
