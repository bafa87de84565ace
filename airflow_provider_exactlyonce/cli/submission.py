"""The command line with which a job's driver is submitted to Spark."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming import settings


def submit_command(
    job: str, arguments: Sequence[str], *, master: str, conf: Mapping[str, str], packages: str | None = None
) -> list[str]:
    """Return the command line that runs a job's driver.

    :raises RefusedError: when the job is not there, or a setting contradicts a required one
    """
    if not Path(job).is_file():
        raise RefusedError(f"there is no job file {job!r}")
    beside = Path(sys.executable).with_name("spark-submit")
    command = [shutil.which("spark-submit") or str(beside), "--master", master]
    named = {"spark.app.name": Path(job).name, **conf}  # not that of the program which runs it
    for name, value in settings.submit_settings(named).items():
        command += ["--conf", f"{name}={value}"]
    if packages:
        command += ["--packages", packages]
    else:
        from airflow_provider_exactlyonce.devkit.jars import spark_connector_jars

        command += ["--jars", ",".join(map(str, spark_connector_jars()))]
    return [*command, *settings.program_of(job), *arguments]


def environment(config: Mapping[str, str]) -> dict[str, str]:
    """Return what a driver's environment has beside ours.

    :param config: client configuration in librdkafka's names
    """
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return {**python, settings.KAFKA_VARIABLE: json.dumps(config)}
