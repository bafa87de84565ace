"""What a run knows of its ledger and its lineage; it is made without Kafka."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.streaming.commit.run import Run
from tests.unit.checkpoint import crafted


def test_a_batch_that_is_another_commit_now_is_none_that_a_reemit_has_restored(tmp_path: Path) -> None:
    home, run = Home(tmp_path / "home"), Run.__new__(Run)
    vars(run).update(home=home, _lineage=crafted.reemitting(home))
    run.rebase(2, 21)
    assert run.lineage.state_of(2) == 21
    assert home.current() == run.lineage
