"""Each file's or class's tests run in one process, so that what they share is made once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.scheduling import group_of

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

@pytest.mark.parametrize("number", range(20))
def test_one(number):
    pass
"""


def test_a_class_may_run_elsewhere_than_the_rest_of_its_file_and_airflows_tests_stay_together() -> None:
    assert group_of("tests/a/test_b.py::test_c[d::e]") == "tests/a/test_b.py"
    assert group_of("tests/a/test_b.py::TestC::test_d[e::f]") == "tests/a/test_b.py::TestC"
    assert group_of("tests/integration/airflow/test_dag.py::test_c") == "airflow"
    assert group_of("tests/a/test_rescale.py::test_c[d]") == "tests/a/test_rescale.py::test_c"


def test_a_file_stays_with_one_process(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        (tmp_path / f"test_{name}.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-p",
        "xdist",
        "-n",
        "2",
        "-p",
        "tests.scheduling",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    pairs = set(re.findall(r"\[(gw\d)\].* (test_\w\.py)::", done.stdout))
    assert sorted(file for _, file in pairs) == ["test_a.py", "test_b.py", "test_c.py", "test_d.py"]
