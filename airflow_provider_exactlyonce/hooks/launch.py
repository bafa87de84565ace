"""How a task starts a pipeline's driver: connections, job file and settings become one command."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.jars.spark import python_environment
from airflow_provider_exactlyonce.storage.opening import LOCAL, is_local
from airflow_provider_exactlyonce.storage.s3_environment import KEYS
from airflow_provider_exactlyonce.storage.s3_environment import VARIABLE as S3_VARIABLE

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.control.home import Home
    from airflow_provider_exactlyonce.control.launching import Launch
    from airflow_provider_exactlyonce.hooks.spark_submit import DriverSettings


def build_launch(home: Home, settings: DriverSettings, *, until: str, goal: str | None = None) -> Launch:
    """Return how the driver of a home is started.

    :param until: when it ends, as the driver's ``--until`` takes it
    :param goal: as the driver's ``--goal`` takes it, for an ``until`` that counts from the first start on
    :raises RefusedError: when a setting or a connection can't be used
    :raises AirflowNotFoundException: when there is no such connection
    """
    arguments = [
        *("--home", str(home), "--until", until),
        *(("--goal", goal) if goal is not None else ()),
        *settings.application_args,
    ]
    return launch_of(settings, arguments, home)


def launch_of(settings: DriverSettings, arguments: Sequence[str], home: Home, *, anywhere: bool = True) -> Launch:
    """Return how a file is submitted as a driver is, with other arguments than the settings'.

    :param anywhere: whether it may run elsewhere than the task does
    :raises RefusedError: when a setting or a connection can't be used
    :raises AirflowNotFoundException: when there is no such connection
    """
    from airflow_provider_exactlyonce.control.clusters import TOKEN_PLACEHOLDER
    from airflow_provider_exactlyonce.control.launching import Launch
    from airflow_provider_exactlyonce.hooks import clusters, object_storage, spark_submit
    from airflow_provider_exactlyonce.jars import class_archive
    from airflow_provider_exactlyonce.streaming.settings import TOKEN_VARIABLE

    cluster = spark_submit.cluster_of(settings.conn_id, settings.conf)
    remote: dict[str, str] = {}
    local: dict[str, str | None] = {}
    files: Mapping[Path, str] = {}
    if cluster is None:
        reach = object_storage.driver_environment(home.location, home.here)
        local = {**settings.env_vars, **python_environment(), **_secrets(settings, reach)}
        local |= class_archive.environment({**os.environ, **settings.env_vars}, settings.conf)
        local |= reach
        files = object_storage.driver_files(home.location, home.here)
    elif not anywhere:
        raise _runs_elsewhere(settings)
    else:
        local |= spark_submit.submission_environment()
        object_storage.check_for_cluster(home.location)
        reach = object_storage.driver_environment(home.location, home.here)
        if "AWS_PROFILE" in reach:
            raise RefusedError(
                f"{home.location}: its connection names the profile {reach['AWS_PROFILE']}, which is in a file of "
                "this host, and the driver runs in a cluster: give it an access key, or use the cluster's own role"
            )
        secrets = _secrets(settings, reach)
        if any(map(reach.get, KEYS)):
            secrets[S3_VARIABLE] = json.dumps(reach)
        else:
            remote |= {name: value for name, value in reach.items() if value}
        secrets = clusters.secrets_to_write(cluster, settings.conf, secrets, home)
        paths = {name: home.here / f"{name.removeprefix('EXACTLYONCE_').lower()}.json" for name in secrets}
        files = {path: secrets[name] for name, path in paths.items()}
        secret_paths = {name: str(path) for name, path in paths.items()}
        if files and not is_local(home.path):  # YARN brings them into the driver's working directory
            shipped = filter(None, [settings.conf.get("spark.files"), *(path.as_uri() for path in files)])
            settings = replace(settings, conf={**settings.conf, "spark.files": ",".join(shipped)})
            secret_paths = {name: path.name for name, path in paths.items()}
        remote |= {
            **settings.env_vars,
            TOKEN_VARIABLE: TOKEN_PLACEHOLDER,
            **{name: f"@{path}" for name, path in secret_paths.items()},
        }
    command, printable = spark_submit.build_command(settings, arguments, remote)
    for path, secret in files.items():  # only its owner may read it; last, so that a refused start leaves none
        LOCAL.replace(path, secret.encode(), durable=False)
    return Launch(command=command, printable=printable, environment=local)


def _secrets(settings: DriverSettings, reach: Mapping[str, str | None]) -> dict[str, str]:
    """Return what a driver is told of its connections, by its variable.

    :param reach: the variables with which it reaches its home
    """
    from airflow_provider_exactlyonce.hooks import connections, kafka
    from airflow_provider_exactlyonce.streaming.settings import (
        KAFKA_VARIABLE,
        POSTGRES_VARIABLE,
        REGISTRY_VARIABLE,
        SOURCES_VARIABLE,
        STORES_VARIABLE,
    )

    secrets = {KAFKA_VARIABLE: kafka.driver_config(settings.kafka_conn_id)}
    if settings.source_conn_ids:
        secrets[SOURCES_VARIABLE] = kafka.sources_config(settings.source_conn_ids)
    if settings.postgres_conn_ids:
        secrets[POSTGRES_VARIABLE] = connections.postgres(settings.postgres_conn_ids)
    if settings.store_conn_ids:
        secrets[STORES_VARIABLE] = connections.stores(settings.store_conn_ids, beside=reach)
    if settings.schema_registry_conn_id:
        secrets[REGISTRY_VARIABLE] = connections.schema_registry(settings.schema_registry_conn_id)
    return secrets


def check_runs_here(settings: DriverSettings) -> None:
    """Check that a task's driver runs on the task's own host.

    :raises AirflowNotFoundException: when there is no such connection
    :raises RefusedError: when it would run in a cluster
    """
    from airflow_provider_exactlyonce.hooks import spark_submit

    if spark_submit.cluster_of(settings.conn_id, settings.conf) is not None:
        raise _runs_elsewhere(settings)


def _runs_elsewhere(settings: DriverSettings) -> RefusedError:
    return RefusedError(
        f"connection {settings.conn_id} has deploy-mode cluster, and what {settings.name} starts has to run where the "
        "task does: give it a connection with deploy-mode client"
    )


def find_application(application: str, dag_file: str | None) -> str:
    """Return the path of a job's file; a relative one is looked up beside the DAG's file, then in this directory.

    :param dag_file: the file of the task's DAG, None for a task without one
    :raises RefusedError: when it is nowhere
    """
    if not isinstance(application, str) or not application.strip():  # as a template may give it
        raise RefusedError(f"application={application!r}: name the job's file")
    if urlsplit(application).scheme:
        return application
    places = [Path(dag_file).parent, Path.cwd()] if dag_file is not None else [Path.cwd()]
    for place in places:
        path = place / Path(application).expanduser()
        if path.is_file():
            return str(path.resolve())
    looked = " or ".join(str(place) for place in places)
    raise RefusedError(f"application={application!r} is not there, looked up from {looked}")
