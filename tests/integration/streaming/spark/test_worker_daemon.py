"""Contract with Spark: how it starts the process that Python workers are forked from, and how a driver stops it.

If Spark no longer takes ``spark.python.daemon.module``, or starts the module in another way, drop the setting in
``open_session``: workers are then started by Spark's own module, and are only slower. ``_drivers`` in
``control/processes.py`` tells workers from drivers by the same command line.

If PySpark has no ``_accumulatorServer`` any more, or stops without waiting for it, drop ``stop_session``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import processes
from airflow_provider_exactlyonce.jars import class_archive
from airflow_provider_exactlyonce.streaming.driver import job_main
from airflow_provider_exactlyonce.streaming.spark import worker_daemon

ARCHIVE = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"


def test_workers_come_from_a_process_without_threads_that_has_imported_compiled_files(spark: SparkSession) -> None:
    def look(_: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what a worker sees of itself and of its parent."""
        parent = Path(f"/proc/{os.getppid()}")
        row = {
            "command": (parent / "cmdline").read_text().split("\0"),
            "threads": len(list((parent / "task").iterdir())),
            "pyspark": sys.modules["pyspark"].__file__,
            "parent": os.getppid(),
            "loaded": "airflow_provider_exactlyonce.kafka.preflight" in sys.modules,
        }
        yield pa.RecordBatch.from_pylist([row])

    schema = "command ARRAY<STRING>, threads BIGINT, pyspark STRING, parent BIGINT, loaded BOOLEAN"
    (row,) = spark.range(1).coalesce(1).mapInArrow(look, schema).collect()
    assert row["command"][1:] == ["-m", worker_daemon.__name__, "pyspark.worker", ""]
    assert row["threads"] == 1, "a fork has none of them, and may wait for ever for a lock that one held"
    assert Path(row["pyspark"]) == Path(pyspark.__file__)
    assert row["loaded"]
    jvm = process_identity.parent(row["parent"])
    assert jvm is not None
    assert row["parent"] not in processes._drivers(jvm)


def test_a_driver_that_spark_submit_starts_imports_compiled_files(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text("import pyspark\nprint(pyspark.__file__)\n")
    command = [sys.executable, job_main.__file__, str(job)]
    path = os.pathsep.join([str(ARCHIVE), *filter(None, [os.environ.get("PYTHONPATH")])])  # as PythonRunner of Spark
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert ARCHIVE.is_file(), "it is what pip installs"
    assert done.stdout.split() == [pyspark.__file__], done.stderr


@pytest.mark.slow
def test_a_driver_does_not_wait_for_the_server_of_accumulators(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(
        "from airflow_provider_exactlyonce.streaming.spark.session import open_session, stop_session\n"
        "spark = open_session('a job')\n"
        "server = spark.sparkContext._accumulatorServer\n"
        "spark.range(1).rdd.map(lambda row: row).count()\n"
        "stop_session(spark)\n"
        "print(server.server_shutdown, spark.sparkContext._jsc)\n"
    )
    environment = {**os.environ, **class_archive.environment(os.environ, {})}
    environment.pop("PYSPARK_SUBMIT_ARGS", None)
    done = subprocess.run([sys.executable, job], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False", "None"], done.stderr[-3000:]
