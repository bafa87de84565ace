"""The command line with which a job's driver is submitted to Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.jars import class_archive
from airflow_provider_exactlyonce.jars.spark import python_environment, spark_submit
from airflow_provider_exactlyonce.streaming import file_systems, settings


def submit_command(
    job: str, arguments: Sequence[str], *, master: str, conf: Mapping[str, str], packages: str | None = None
) -> list[str]:
    """Return the command line that runs a job's driver.

    :raises RefusedError: when the job is not there, or a setting contradicts a required one
    """
    if not Path(job).is_file():
        raise RefusedError(f"there is no job file {job!r}")
    command = [spark_submit(), "--master", master]
    named_conf = {"spark.app.name": Path(job).name, **conf}  # not that of the program which runs it
    for name, value in settings.submit_settings(named_conf).items():
        command += ["--conf", f"{name}={value}"]
    jars = file_systems.driver_jars(arguments, complete=packages is None)
    if packages:
        command += ["--packages", packages]
    else:
        from airflow_provider_exactlyonce.jars.cache import spark_connector_jars

        jars = [*spark_connector_jars(), *jars]
    if jars:
        command += ["--jars", ",".join(map(str, jars))]
    return [*command, *settings.program_of(job), *arguments]


def environment(config: Mapping[str, str], conf: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a driver's environment beside ours.

    :param config: client configuration in librdkafka's names
    :param conf: the user's Spark settings
    """
    return {
        **python_environment(),
        **class_archive.environment(os.environ, conf),
        settings.KAFKA_VARIABLE: json.dumps(config),
    }
