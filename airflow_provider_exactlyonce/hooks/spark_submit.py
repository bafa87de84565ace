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
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.exceptions import RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.hooks import clusters, packages
from airflow_provider_exactlyonce.hooks.connections import text_of

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_provider_exactlyonce.control.clusters import Cluster

_DEPLOY_MODE: Final = "spark.submit.deployMode"


@dataclass(frozen=True, kw_only=True)
class DriverSettings:
    """The settings of a driver, as users give them: the arguments of the operators that start drivers.

    :param application: path of the job's file, see :func:`~hooks.launch.find_application`, or a URI
    :param name: Spark application's name
    """

    application: str
    name: str
    conn_id: str = "spark_default"
    kafka_conn_id: str = "kafka_default"
    source_conn_ids: Sequence[str] = ()
    postgres_conn_ids: Sequence[str] = ()
    store_conn_ids: Sequence[str] = ()
    schema_registry_conn_id: str | None = None
    conf: Mapping[str, Any] = field(default_factory=dict)
    jars: str | None = None
    packages: str | None = None
    application_args: Sequence[str] = ()
    env_vars: Mapping[str, str] = field(default_factory=dict)


def build_command(
    submitted: DriverSettings, arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str], str]:
    """Build the spark-submit command for a driver, with the settings that the protocol needs.

    :param environment: variables of a driver that a cluster runs; everybody can read them
    :returns: the command, and the same as text, with secrets masked
    :raises SettingRefusedError: when a setting contradicts the protocol
    :raises RefusedError: when this connection's drivers could not be supervised, or there is no spark-submit
    :raises AirflowNotFoundException: when there is no such connection
    """
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_provider_exactlyonce.jars.cache import cache_directory
    from airflow_provider_exactlyonce.streaming.settings import program_of, submit_settings

    connected = _hook(submitted.conn_id, submitted.conf)
    cluster = clusters.cluster_of(connected)
    conf = submit_settings({name: text_of(value) for name, value in submitted.conf.items()})
    jars = submitted.jars
    if clusters.is_image_complete(cluster, conf):
        conf.setdefault(packages.PACKAGES, "installed")
    else:
        jars = _jars(submitted, arguments)
    conf |= packages.settings_for(conf, str(connected._connection["master"]), cache_directory())
    if cluster is None:
        conf.setdefault("spark.pyspark.driver.python", sys.executable)  # the executors' may have another place
    else:
        conf |= clusters.settings_for(cluster, conf, environment)
    # A cluster fetches the file that it runs, and no other.
    application, *job = program_of(submitted.application) if cluster is None else [submitted.application]
    hook = SparkSubmitHook(
        conf=conf,
        conn_id=submitted.conn_id,
        jars=jars,
        packages=submitted.packages,
        name=submitted.name,
        application_args=[*job, *arguments],
        deploy_mode=_deploy_mode_of(connected),  # named always, or spark-defaults.conf could choose another one
    )
    program, *program_arguments = hook._build_spark_submit_command(application)
    return [_executable(program), *program_arguments], hook._mask_cmd([program, *program_arguments])


def cluster_of(conn_id: str, conf: Mapping[str, Any]) -> Cluster | None:
    """Return the manager that runs a connection's drivers, None when they run where the task does.

    :param conn_id: connection of type ``spark``
    :param conf: with which they are started: its namespace goes before the connection's
    :raises SettingRefusedError: when the settings want another deploy mode than the connection
    :raises RefusedError: when a driver of this connection could not be found again
    :raises AirflowNotFoundException: when there is no such connection
    """
    return clusters.cluster_of(_hook(conn_id, conf))


def _hook(conn_id: str, conf: Mapping[str, Any]) -> SparkSubmitHook:
    from airflow.providers.apache.spark.hooks import spark_submit
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    connection = SparkSubmitHook.get_connection(conn_id)  # the hook would go on with master "yarn" if there were none
    if not str(connection.conn_type or "spark").startswith("spark"):  # its type would be taken for the master's scheme
        raise RefusedError(f"connection {conn_id} is of type {connection.conn_type}: conn_id takes one of type spark")
    if connection.host and connection.host.startswith("k8s") and not hasattr(spark_submit, "kube_client"):
        raise RefusedError(
            f"connection {conn_id} submits to Kubernetes: install apache-airflow-providers-cncf-kubernetes, "
            "through which its drivers are looked up"
        )
    hook = SparkSubmitHook(conn_id=conn_id, conf=dict(conf))
    wanted_mode, mode = conf.get(_DEPLOY_MODE), _deploy_mode_of(hook)
    if wanted_mode not in (None, mode):
        reason = f"deploy-mode in the extra of connection {conn_id} says where a driver runs, and is looked for"
        raise SettingRefusedError(_DEPLOY_MODE, wanted_mode, mode, reason)
    return hook


def _deploy_mode_of(hook: SparkSubmitHook) -> str:
    return hook._connection["deploy_mode"] or "client"


def submission_environment() -> dict[str, str]:
    """Return the variable with which this environment's spark-submit finds its Spark, whatever Python the PATH has.

    The interpreter's own variables would do, too, but go on to a driver in a cluster, where their paths mean nothing.
    """
    from airflow_provider_exactlyonce.jars.spark import pyspark_jars

    is_ours = Path(_executable("spark-submit")).parent == Path(sys.executable).parent
    return {"SPARK_HOME": str(pyspark_jars().parent)} if is_ours and "SPARK_HOME" not in os.environ else {}


def _executable(program: str) -> str:
    sibling = Path(sys.executable).parent / program
    path = shutil.which(program) or (str(sibling) if sibling.exists() else None)
    if path is None:
        raise RefusedError(
            f"{program} is neither on the PATH nor beside {sys.executable}; "
            "install airflow-provider-exactlyonce[spark], or put Spark's bin folder on the PATH"
        )
    return path


def _jars(submitted: DriverSettings, arguments: Sequence[str]) -> str | None:
    from airflow_provider_exactlyonce.jars.cache import spark_connector_jars
    from airflow_provider_exactlyonce.streaming.file_systems import driver_jars

    complete = not (submitted.jars or submitted.packages)
    jars = [*([submitted.jars] if submitted.jars else ()), *(spark_connector_jars() if complete else ())]
    return ",".join(map(str, [*jars, *driver_jars(arguments, complete=complete)])) or None
