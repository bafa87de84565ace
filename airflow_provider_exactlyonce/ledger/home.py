"""Where a pipeline's home is, as its ledger says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, UnknownPipelineError
from airflow_provider_exactlyonce.ledger.reader import LedgerReader


def home_path(config: Mapping[str, Any], pipeline: str) -> str:
    """Return the home that a pipeline's last run started from.

    :param config: client configuration in librdkafka's names
    :raises UnknownPipelineError: when the pipeline was never started on this cluster
    :raises ExactlyOnceError: when the cluster does not answer
    """
    from confluent_kafka import KafkaException

    try:
        with LedgerReader(config, pipeline) as reader:
            tail = reader.tail()
    except KafkaException as error:
        raise ExactlyOnceError(f"Kafka at {config['bootstrap.servers']} did not answer: {error.args[0]}") from error
    if tail is None or tail.claim is None:
        raise never_started(pipeline)
    return tail.claim.home_path


def never_started(pipeline: str) -> UnknownPipelineError:
    """Return the error for a pipeline without a ledger, or without a claim in it."""
    return UnknownPipelineError(f"pipeline {pipeline} has no ledger on this cluster: it has never been started here")
