"""An Iceberg table in a SQL catalog."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.streaming.sinks.iceberg.lake import IcebergLake


@pytest.fixture
def lake(tmp_path: Path) -> IcebergLake:
    (tmp_path / "lake").mkdir()
    return IcebergLake(tmp_path / "lake")
