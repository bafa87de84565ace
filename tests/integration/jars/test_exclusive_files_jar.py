"""The jar in the package is what its source gives."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.jars.cache import EXCLUSIVE_FILES_JAR
from scripts.build_jar import build


def _javac() -> str:
    if shutil.which("javac") is None:
        return "none"
    said = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=True)
    return next(iter(re.findall(r"javac (\d+)", said.stdout + said.stderr)), "unknown")


@pytest.mark.slow
def test_the_source_gives_the_same_bytes_again(tmp_path: Path) -> None:
    if (found := _javac()) != "17":
        pytest.skip(f"javac is {found}; other bytes may come of another one than 17")
    build(tmp_path / "again.jar")
    assert (tmp_path / "again.jar").read_bytes() == EXCLUSIVE_FILES_JAR.read_bytes(), "scripts/build_jar.py makes it"
