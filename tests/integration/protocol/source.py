"""A source that needs no topic's records: every batch and every record follows from a seed."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping

from tests.crash_matrix.shapes import canonical

PARTITIONS = 2
KEYS = 7
_ROWS_MAXIMUM = 60


def ends(seed: int, batch: int) -> dict[int, int]:
    """Return where a batch ends in each partition; some batches are empty."""
    total = dict.fromkeys(range(PARTITIONS), 0)
    for number in range(batch + 1):
        generator = random.Random(f"{seed}/{number}")
        empty = generator.random() < 0.1
        for partition in total:
            total[partition] += 0 if empty else generator.randint(0, _ROWS_MAXIMUM)
    return total


def offsets_text(topic: str, seed: int, batch: int) -> str:
    """Return the text of Spark's ``offsets/<batch>``."""
    header = {"batchWatermarkMs": 0, "batchTimestampMs": 1_700_000_000_000 + batch, "conf": {}}
    line = {topic: {str(partition): end for partition, end in ends(seed, batch).items()}}
    return "\n".join(("v1", json.dumps(header), json.dumps(line)))


def row(partition: int, offset: int) -> dict[str, object]:
    return {"id": f"{partition}/{offset}", "k": f"k{offset % KEYS}"}


def rows(ranges: Mapping[int, tuple[int, int]]) -> list[dict[str, object]]:
    return [row(partition, offset) for partition, (start, end) in ranges.items() for offset in range(start, end)]


def owed(ranges: Mapping[int, tuple[int, int]]) -> Counter[str]:
    """Return what a batch must write."""
    return Counter(canonical(record) for record in rows(ranges))
