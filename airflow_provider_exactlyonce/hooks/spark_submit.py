"""The one adapter over the Spark provider's ``SparkSubmitHook``.

The hook knows connections, masters, Kerberos and how a command is masked, but its ``submit()`` ties the driver to the
worker: it pipes the output and kills with the task. So only the command is taken from it. That uses three private
names, ``_build_spark_submit_command``, ``_mask_cmd`` and ``_connection``; should one go, the test of this module fails
first, and this module is the only one to change (and ``hooks/clusters.py``, for drivers that a cluster runs).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.hooks import clusters, packages

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_provider_exactlyonce.control.clusters import Cluster


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What is submitted.

    :param application: path or URI of the job's file
    :param name: Spark application's name
    :param arguments: arguments of the application
    :param conf: the user's Spark settings
    :param jars: comma-separated; with neither jars nor packages Spark's own Kafka connector is passed
    :param packages: comma-separated Maven coordinates
    :param environment: variables of a driver that a cluster runs; everybody can read them
    """

    application: str
    name: str
    arguments: Sequence[str]
    conf: Mapping[str, Any] = field(default_factory=dict)
    jars: str | None = None
    packages: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """A command line.

    :param printable: the same with secrets masked
    """

    arguments: tuple[str, ...]
    printable: str


def build_command(conn_id: str, submission: Submission) -> CommandLine:
    """Build the spark-submit command of a submission, with the settings that the protocol needs.

    :param conn_id: connection of type ``spark``
    :raises SettingRefusedError: when a setting contradicts the protocol
    :raises RefusedError: when this connection's drivers could not be supervised, or there is no spark-submit
    :raises AirflowNotFoundException: when there is no such connection
    """
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_provider_exactlyonce.devkit.jars import cache_directory
    from airflow_provider_exactlyonce.streaming.settings import program_of, submit_settings

    connected = _hook(conn_id)
    cluster = clusters.cluster_of(connected)
    jars = submission.jars if submission.jars or submission.packages else _connector_jars()
    conf = submit_settings({name: _text(value) for name, value in submission.conf.items()})
    conf |= packages.settings_for(conf, str(connected._connection["master"]), cache_directory())
    if cluster is None:
        conf.setdefault("spark.pyspark.driver.python", sys.executable)  # the executors' may have another place
    else:
        conf |= clusters.settings_for(cluster, conf, submission.environment)
    # A cluster fetches the file that it runs, and no other.
    application, *job = program_of(submission.application) if cluster is None else [submission.application]
    hook = SparkSubmitHook(
        conf=conf,
        conn_id=conn_id,
        jars=jars,
        packages=submission.packages,
        name=submission.name,
        application_args=[*job, *submission.arguments],
    )
    program, *rest = hook._build_spark_submit_command(application)
    return CommandLine(arguments=(_executable(program), *rest), printable=hook._mask_cmd([program, *rest]))


def cluster_of(conn_id: str) -> Cluster | None:
    """Return the manager that runs a connection's drivers, None when they run where the task does.

    :param conn_id: connection of type ``spark``
    :raises RefusedError: when a driver of this connection could not be found again
    :raises AirflowNotFoundException: when there is no such connection
    """
    return clusters.cluster_of(_hook(conn_id))


def _hook(conn_id: str) -> SparkSubmitHook:
    from airflow.providers.apache.spark.hooks import spark_submit
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    connection = SparkSubmitHook.get_connection(conn_id)  # the hook would go on with master "yarn" if there were none
    if connection.host and connection.host.startswith("k8s") and not hasattr(spark_submit, "kube_client"):
        raise RefusedError(
            f"connection {conn_id} submits to Kubernetes: install apache-airflow-providers-cncf-kubernetes, "
            "through which its drivers are looked up"
        )
    return SparkSubmitHook(conn_id=conn_id)


def python_environment() -> dict[str, str]:
    """Return the variables that make driver and workers use this process's interpreter.

    Spark's Python workers are otherwise the PATH's ``python3``, without the packages of this environment.
    """
    return {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}


def submission_environment() -> dict[str, str]:
    """Return the variable by which this environment's spark-submit finds its Spark, whatever Python the PATH has.

    The interpreter's own variables would do, too, but go on to a driver in a cluster, where their paths mean nothing.
    """
    from airflow_provider_exactlyonce.devkit.spark import pyspark_jars

    is_ours = Path(_executable("spark-submit")).parent == Path(sys.executable).parent
    return {"SPARK_HOME": str(pyspark_jars().parent)} if is_ours and "SPARK_HOME" not in os.environ else {}


def _executable(program: str) -> str:
    beside = Path(sys.executable).parent / program
    path = shutil.which(program) or (str(beside) if beside.exists() else None)
    if path is None:
        raise RefusedError(
            f"{program} is neither on the PATH nor beside {sys.executable}; "
            "install airflow-provider-exactlyonce[spark], or put Spark's bin folder on the PATH"
        )
    return path


def _connector_jars() -> str:
    from airflow_provider_exactlyonce.devkit.jars import spark_connector_jars

    return ",".join(str(jar) for jar in spark_connector_jars())


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
