"""Finds the home of a pipeline that a task names, and the name of the task's requests to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.requests import TaskRequest
from airflow_provider_exactlyonce.exceptions import RefusedError, UnknownPipelineError
from airflow_provider_exactlyonce.hooks import object_storage

if TYPE_CHECKING:
    from airflow.sdk import Context


def home_at(checkpoint: str) -> Home:
    """Return the home that a user has named.

    :param checkpoint: a local path, a ``file:`` URI, ``hdfs://HOST:PORT/PATH``, ``s3://CONN_ID@BUCKET/PATH``,
        ``gs://CONN_ID@BUCKET/PATH``, or ``abfss://CONN_ID@CONTAINER/PATH``; without a connection the environment's
        credentials count
    :raises RefusedError: when it is of another kind, or the connection can't be used
    :raises AirflowNotFoundException: when there is no such connection
    """
    conn_id, url = _split(checkpoint)
    if not checkpoint.strip():  # as a template may give it: the working directory
        raise RefusedError(f"checkpoint={checkpoint!r}: name the pipeline's home")
    home = Home(url)
    return home if conn_id is None else Home(checkpoint, object_storage.open_place(conn_id, home.path))


def check(checkpoint: str) -> None:
    """Check a home's name; makes no request.

    :raises RefusedError: when it is no name of one
    """
    Home(_split(checkpoint)[1])


def _split(checkpoint: object) -> tuple[str | None, str]:
    if not isinstance(checkpoint, str):
        raise RefusedError(f"checkpoint={checkpoint!r} is no string: name the pipeline's home by one")
    return object_storage.split(checkpoint)


def find(kafka_conn_id: str, *, pipeline: str | None, checkpoint: str | None) -> tuple[Home, str]:
    """Return a pipeline's home and its name.

    :param kafka_conn_id: connection of type ``kafka``, asked for the ledger when only the pipeline is named
    :param checkpoint: its home, as :func:`home_at` takes it
    :raises UnknownPipelineError: when there is no such pipeline, or ``checkpoint`` is no home
    :raises RefusedError: when it is another pipeline's, or this machine does not see the one that the ledger names
    :raises HomeMovedError: when it was moved
    :raises ExactlyOnceError: when the cluster does not answer
    """
    if checkpoint is None:
        from airflow_provider_exactlyonce.checkpoint import home_match
        from airflow_provider_exactlyonce.hooks.kafka import client_config

        if pipeline is None:
            raise RefusedError("neither pipeline nor checkpoint is given")
        return home_match.find_home(client_config(kafka_conn_id), pipeline), pipeline
    home = home_at(checkpoint)
    owner = home.pipeline()
    if owner is None:
        raise UnknownPipelineError(f"checkpoint={checkpoint!r} is no home of a pipeline; its first driver makes it one")
    if pipeline not in (None, owner):
        raise RefusedError(f"checkpoint={checkpoint!r} is the home of pipeline {owner}, not of {pipeline}")
    return home, owner


def request_of(home: Home, context: Context) -> TaskRequest:
    """Return the name under which a task asks its pipeline: the same for all its tries."""
    ti, run = context["ti"], context.get("dag_run")
    started = getattr(run, "start_date", None)
    return TaskRequest(
        home,
        (ti.dag_id, ti.run_id, ti.task_id, str(ti.map_index)),
        clears=getattr(run, "clear_number", 0) or 0,
        started=None if started is None else started.isoformat(),
        max_tries=getattr(ti, "max_tries", None),
    )
