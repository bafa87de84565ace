"""Finds a pipeline's home by the newest run in its ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_exactlyonce.exceptions import UnknownPipelineError
from airflow_provider_exactlyonce.ledger.reader import tail_of
from airflow_provider_exactlyonce.ledger.records import ClaimRecord


def newest_claim(config: Mapping[str, Any], pipeline: str) -> ClaimRecord:
    """Return the claim of a pipeline's newest run, which names the home that it started from.

    :param config: client configuration in librdkafka's names
    :raises UnknownPipelineError: when the pipeline was never started on this cluster
    :raises ExactlyOnceError: when the cluster does not answer
    """
    tail = tail_of(config, pipeline)
    if tail is None or tail.claim is None:
        raise never_started(pipeline)
    return tail.claim


def never_started(pipeline: str) -> UnknownPipelineError:
    """Return the error for a pipeline without a ledger, or without a claim in it."""
    return UnknownPipelineError(f"pipeline {pipeline} has no ledger on this cluster: it has never been started here")
