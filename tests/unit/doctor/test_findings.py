"""The documents know every finding by its name."""

from __future__ import annotations

import re
from pathlib import Path

from airflow_provider_exactlyonce.doctor.findings import KINDS

TABLE = (Path(__file__).parents[3] / "docs/doctor.md").read_text()


def test_every_finding_has_a_row_with_its_severity() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (\w+) \|", TABLE, re.MULTILINE)
    assert rows == [(name, severity.value) for name, severity in KINDS.items()]
