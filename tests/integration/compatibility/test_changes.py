"""Each row of the table in docs/compatibility.md: both versions run, and Spark and the check are asked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.integration.compatibility.harness import Bench
from tests.integration.compatibility.versions import CHANGES

DOCUMENT = Path(__file__).parents[3] / "docs/compatibility.md"
ROW = re.compile(
    r"^\| ([^|]+) \| (goes on|goes on, wrongly|refuses) \| (compatible|note|incompatible) \| ([^|]+) \|$", re.M
)
ROWS = {change: (spark, check) for change, spark, check, _ in ROW.findall(DOCUMENT.read_text())}


@pytest.fixture(scope="module")
def bench(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(spark, tmp_path_factory.mktemp("compatibility"))


def test_every_change_has_a_row_and_every_row_a_change() -> None:
    assert list(ROWS) == list(CHANGES)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if CHANGES[name].fast else pytest.mark.slow) for name in CHANGES]
)
def test_spark_and_the_check_do_what_the_table_says(bench: Bench, name: str) -> None:
    change, (spark, verdict) = CHANGES[name], ROWS[name]
    saved = bench.save(change.old)
    report = bench.check(saved, change.new)
    assert report.verdict.value == verdict, report.findings
    ran = bench.start(saved, change.new)
    assert (ran.error is not None) == (spark == "refuses"), ran.error
    if spark == "refuses":
        return
    differs = change.differs(ran.rows, bench.whole(saved, change.new))
    assert differs == (spark == "goes on, wrongly"), ran.rows
    assert ran.rows or differs
