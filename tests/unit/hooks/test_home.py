from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control import moving
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.moving import Move
from airflow_provider_exactlyonce.exceptions import HomeMovedError
from airflow_provider_exactlyonce.hooks import home as homes
from airflow_provider_exactlyonce.hooks import kafka
from airflow_provider_exactlyonce.ledger import home as ledger_home


def test_a_task_hears_where_the_home_was_moved_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it names the home, or only the pipeline, whose ledger names the old home until the next start."""
    home = Home(tmp_path / "old")
    lineage = home.create("shop")
    assert homes.find("kafka_default", pipeline="shop", checkpoint=str(home.path))[1] == "shop"
    move = Move(source=str(home.path), target="s3://bucket/shop", lineage=lineage.id, run=1)
    with leases.holding(home.lease, "shop", "copy") as hold, hold.sure():
        moving.seal(home.path, move, hold.pointer)
    monkeypatch.setattr(kafka, "client_config", lambda conn_id: {})
    monkeypatch.setattr(ledger_home, "home_path", lambda config, pipeline: str(home.path))
    for checkpoint in (str(home.path), None):
        with pytest.raises(HomeMovedError, match="was moved to s3://bucket/shop: name that home"):
            homes.find("kafka_default", pipeline="shop", checkpoint=checkpoint)
