"""HDFS's client in a process that starts others."""

from __future__ import annotations

import subprocess
import sys

from tests.waiting import HANG_SECONDS

#: As PySpark starts its JVM.
STARTING = """
import subprocess
from airflow_provider_exactlyonce.storage.opening import place_of

assert place_of("hdfs://localhost:1/nothing").fs is not None
subprocess.run(["true"], check=True, preexec_fn=lambda: None)
"""


def test_a_process_with_a_client_starts_others_as_pyspark_starts_its_jvm() -> None:
    subprocess.run([sys.executable, "-c", STARTING], check=True, timeout=HANG_SECONDS)
