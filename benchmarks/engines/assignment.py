"""What one engine is told to do in one run, on its way into the engine's own process."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final, Self

_VARIABLE: Final = "BENCH_ASSIGNMENT"
HEAP_MEGABYTES: Final = 3_072  # of each engine's JVM

#: The columns of the JSON records, in the DDL of Spark.
COLUMNS: Final = (
    "event_id BIGINT NOT NULL, uuid STRING NOT NULL, itemCode STRING NOT NULL, behavior STRING NOT NULL, "
    "price DECIMAL(12,2) NOT NULL, ts BIGINT NOT NULL"
)


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A query from a topic into a topic.

    :param batch_rows: at most so many records a batch, where there are batches
    :param bounded: ends when all that was there at the start is written
    :param folder: for checkpoints, the same when it is started again
    :param registry: the schema registry's URL; None for JSON
    :param result_id: of the schema that results are written with, by whoever registers none
    """

    servers: str
    query: str
    source: str
    sink: str
    batch_rows: int
    bounded: bool
    folder: str
    registry: str | None
    result_id: int

    @classmethod
    def given(cls) -> Self:
        """Return what this process is told."""
        return cls(**json.loads(os.environ[_VARIABLE]))

    @property
    def batch_options(self) -> dict[str, str]:
        """Options of Spark's source: while the input is fed, a batch has no fewer records either."""
        return {} if self.bounded else {"minOffsetsPerTrigger": str(self.batch_rows), "maxTriggerDelay": "1h"}

    def environment(self) -> Mapping[str, str]:
        return {_VARIABLE: json.dumps(asdict(self))}
