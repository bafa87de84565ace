"""What a batch reads, by its checkpoint and by a broker that may know less than the one that Spark has asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.exceptions import BatchFailedError, RefusedError
from airflow_provider_exactlyonce.streaming.commit.batch import Batch, planned_batch
from tests.unit.checkpoint import crafted


class Cluster:
    """Where the partitions of those topics begin that the broker which is asked has heard of."""

    def __init__(self, begins: dict[str, dict[int, int]]) -> None:
        self.begins = begins

    def __str__(self) -> str:
        return "this cluster"

    def of(self, topic: str) -> Cluster:
        return self

    def topic_id(self, topic: str) -> str | None:
        return f"id of {topic}" if topic in self.begins else None

    def earliest(self, topic: str) -> dict[int, int]:
        return self.begins[topic]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Return one whose batch 3 reads a partition and a topic that batch 2 has not known."""
    made = crafted.checkpoint(tmp_path, batches=3)
    header = crafted.offsets_text(3).rpartition("\n")[0]
    made.write_offsets(3, f"{header}\n" + json.dumps({"in": {"0": 31, "1": 15, "2": 4}, "new": {"0": 2}}))
    return made


def planned(checkpoint: Checkpoint, begins: dict[str, dict[int, int]]) -> Batch:
    clusters: Any = Cluster(begins)
    return planned_batch(checkpoint, clusters, crafted.LINEAGE, 3)


def test_new_topics_and_partitions_are_read_from_where_they_begin(checkpoint: Checkpoint) -> None:
    batch = planned(checkpoint, {"in": {0: 7, 1: 7, 2: 1}, "new": {0: 0}})
    assert batch.source == {"in": {0: (30, 31), 1: (15, 15), 2: (1, 4)}, "new": {0: (0, 2)}}
    assert batch.source_topic_ids == {"in": "id of in", "new": "id of new"}


@pytest.mark.parametrize(
    ("begins", "said"),
    [
        ({"in": {0: 0, 1: 0, 2: 0}}, "source topic new does not exist any more on this cluster, or the broker"),
        ({"in": {0: 0, 1: 0}, "new": {0: 0}}, "partition in-2, which Spark has found on this cluster, is not known"),
        ({"in": {0: 0, 1: 0, 2: 0}, "new": {}}, "partition new-0, which Spark has found"),
    ],
)
def test_what_the_broker_that_is_asked_does_not_know_is_asked_for_again(
    checkpoint: Checkpoint, begins: dict[str, dict[int, int]], said: str
) -> None:
    with pytest.raises(BatchFailedError, match=said):
        planned(checkpoint, begins)


def test_a_topic_of_two_sources_is_refused(checkpoint: Checkpoint) -> None:
    checkpoint.write_offsets(3, f"{crafted.offsets_text(3)}\n" + json.dumps({"in": {"0": 32, "1": 15}}))
    with pytest.raises(RefusedError, match="two sources of this query read in, each up to an end of its own"):
        planned(checkpoint, {"in": {0: 0, 1: 0}})
