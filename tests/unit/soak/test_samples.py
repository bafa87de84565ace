"""Which process is what, and how much is on disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.soak.samples import Seen, role, usage

PARTS = {1: "the soak itself", 10: "scheduler", 20: "broker 1"}
PIPELINES = {"token": "soak-posted"}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (Seen(10, [1], ["airflow"]), "scheduler"),
        (Seen(11, [10, 1], ["airflow"]), "scheduler: children"),
        (Seen(20, [19, 1], ["java"]), "broker 1"),
        (Seen(19, [1], ["python", "guard.py"]), "the soak itself: children"),
        (Seen(5, [99], ["sh"]), "others"),
        (Seen(30, [10, 1], ["/usr/bin/java", "-cp"], "token"), "soak-posted: JVM"),
        (Seen(31, [30, 1], ["python3", "posted.py"], "token"), "soak-posted: driver's Python"),
        (
            Seen(32, [30, 1], ["python", "-m", "pyspark.daemon", "pyspark.worker"], "token"),
            "soak-posted: Python workers",
        ),
        (Seen(33, [1], ["bash", "spark-submit"], "token"), "soak-posted: launcher"),
        (Seen(34, [1], ["java"], "older"), "a driver of before: JVM"),
        (Seen(35, [1], [], "token"), "soak-posted: launcher"),
    ],
)
def test_a_process_has_a_role(seen: Seen, expected: str) -> None:
    assert role(seen, PARTS, PIPELINES) == expected


def test_a_file_with_two_names_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").write_bytes(b"x" * 8192)
    os.link(tmp_path / "a" / "one", tmp_path / "two")
    total, files = usage(tmp_path)
    assert files == 2
    assert total == (tmp_path / "two").stat().st_blocks * 512 > 0
    assert usage(tmp_path / "nothing") == (0, 0)
