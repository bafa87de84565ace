"""A Delta table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.streaming.sinks.delta.lake import DeltaLake


@pytest.fixture
def lake(tmp_path: Path) -> DeltaLake:
    return DeltaLake(tmp_path / "table")
