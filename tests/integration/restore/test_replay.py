from __future__ import annotations

import shutil
import uuid
from dataclasses import replace

from airflow_provider_exactlyonce.checkpoint import lineages
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.control.home import Lineage
from tests.integration.restore.harness import Bench, Case


def restore_copy(case: Case, copy, commit: int) -> None:
    current, tail = case.home.current(), case.tail()
    batch = Checkpoint(copy).newest_commit()
    lineage = replace(current, id=str(uuid.uuid4()), base_batch=batch, base_commit=commit, parent=current.id, parent_run=tail.claim.run, parent_commit=tail.place.commit, last_commit=tail.place.commit)
    lineages.make(case.home, copy, lineage)
    case.home.use(lineage.id)


import pytest
@pytest.mark.parametrize("shape", ["stateless", "windowed", "update", "deduplicated", "joined"])
@pytest.mark.timeout(600)
def test_first(bench: Bench, shape: str, tmp_path) -> None:
    topics = bench.topics(shape)
    case, plain = bench.case(shape, topics, limit=40), bench.case(shape, topics, limit=40)
    rounds = bench.input()
    for _ in range(8):
        rounds.send(topics)
    case.run(stop_at=2)
    current = case.home.current()
    copy = tmp_path / "copy"
    shutil.copytree(case.home.checkpoint(current.id), copy)
    case.run(stop_at=6)
    restore_copy(case, copy, 2)
    told = case.run()
    print(told)
    plain.run()
    assert case.written() == plain.written() or shape == "stateless"
