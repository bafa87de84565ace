"""A table and its sink."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.streaming import DeltaSink


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
def sink(table: Path) -> DeltaSink:
    return DeltaSink(name="lake", path=str(table))
