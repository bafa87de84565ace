"""The version of the job that runs a backfill, and the owner of its drivers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_exactlyonce.backfill import results, workspace
from airflow_provider_exactlyonce.control import releases
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.reader import tail_of

log = logging.getLogger("exactlyonce")


def application_of(made: Home, config: Mapping[str, Any]) -> str:
    """Return the file that a request runs unless it names one: the file of the pipeline's present version.

    What has written a part of its range goes on: with another version it would be another backfill, and that part would
    be written again.

    :param made: the request's home
    :param config: client configuration in librdkafka's names
    :raises RefusedError: when it was not kept
    """
    saved_request, begun = workspace.asked_of(made), workspace.begun(made)
    home, pipeline = workspace.owner_of(made), saved_request.pipeline
    if begun is not None:
        written = results.written_of(config, pipeline, begun.name)
        if written.batches and written.result is None:
            log.info(
                "version %s has written %d batches of this backfill, and goes on; name the job's file to begin another",
                begun.version,
                len(written.batches),
            )
            return _kept(home, pipeline, begun.version)
    tail = tail_of(config, pipeline)
    claim = tail.claim if tail is not None else None
    if claim is None:
        raise RefusedError(f"pipeline {pipeline} has never run on this cluster: name the job's file")
    return _kept(home, pipeline, claim.version)


def owner_of(asking: str, named: str | None) -> str:
    """Return the owner of a request's drivers: drivers with another job's file run another backfill.

    :param asking: the requester
    :param named: the job's file that the request names, empty or None when it names no file
    """
    return f"{asking} with job {releases.hash_of(Path(named)) or named}" if named else asking


def _kept(home: Home, pipeline: str, version: str) -> str:
    application = releases.application(home, version)
    if application is None:
        raise RefusedError(f"the file of version {version} of {pipeline} is not kept in {home}: name the job's file")
    return str(application.file)
