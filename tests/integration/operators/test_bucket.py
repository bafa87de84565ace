"""The operator with a home in a bucket, reached with a connection; drivers are real processes on a real HTTP server."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.hooks.home import home_at
from tests import object_stores
from tests.integration.operators.test_streaming import calls as calls
from tests.integration.operators.test_streaming import execute, operator

# The clients of object stores have deprecations of their own.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with object_stores.moto() as address:
        yield address


@pytest.fixture
def checkpoint(moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give a new home's URL; this process itself has no key to it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    connect(monkeypatch, moto)
    return f"s3://lake@bucket/pipelines/{uuid.uuid4()}"


def connect(monkeypatch: pytest.MonkeyPatch, address: str, **extra: Any) -> None:
    connection = {
        "conn_type": "aws",
        "login": object_stores.KEY,
        "password": object_stores.SECRET,
        "extra": {"endpoint_url": address, "region_name": "us-east-1", **extra},
    }
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))


def test_a_driver_is_supervised_over_its_restarts(
    checkpoint: str, tmp_path: Path, calls: Callable[[], list[dict[str, Any]]]
) -> None:
    plans = ("take-lease commit commit sleep=0.2 die", "take-lease commit end=finished")
    result = execute(operator(tmp_path, *plans, checkpoint=checkpoint))
    assert (result["run"], result["commit"], result["rows"], result["restarts"]) == (2, 3, 300, 1)
    assert leases.read(home_at(checkpoint).lease) is None
    for call in calls():
        assert checkpoint.replace("lake@", "") in call["arguments"]
        assert object_stores.SECRET not in " ".join(call["arguments"])
        assert call["environment"]["AWS_SECRET_ACCESS_KEY"] == object_stores.SECRET
