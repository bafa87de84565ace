"""Finds the home of a pipeline that a task names."""

from __future__ import annotations

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError, UnknownPipelineError


def find(kafka_conn_id: str, *, pipeline: str | None, checkpoint: str | None) -> tuple[Home, str]:
    """Return a pipeline's home and its name.

    :param kafka_conn_id: connection of type ``kafka``, asked for the ledger when only the pipeline is named
    :param pipeline: its name
    :param checkpoint: its home, a local path or a ``file:`` URI
    :raises UnknownPipelineError: when there is no such home
    :raises RefusedError: when it is another pipeline's
    :raises ExactlyOnceError: when the cluster does not answer
    """
    if checkpoint is None:
        from airflow_provider_exactlyonce.hooks.kafka import client_config
        from airflow_provider_exactlyonce.ledger.home import home_path

        if pipeline is None:
            raise RefusedError("neither pipeline nor checkpoint is given")
        return Home(home_path(client_config(kafka_conn_id), pipeline)), pipeline
    home = Home(checkpoint)
    owner = home.pipeline()
    if owner is None:
        raise UnknownPipelineError(f"checkpoint={checkpoint!r} is no home of a pipeline; its first driver makes it one")
    if pipeline not in (None, owner):
        raise RefusedError(f"checkpoint={checkpoint!r} is the home of pipeline {owner}, not of {pipeline}")
    return home, owner
