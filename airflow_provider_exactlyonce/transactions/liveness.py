"""Whether a pipeline's driver lives, asked from outside before its transaction is aborted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from airflow_provider_exactlyonce.control import lease
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.lease import Liveness
from airflow_provider_exactlyonce.ledger.reader import tail_of


def why_taken_for_alive(config: Mapping[str, Any], pipeline: str) -> str | None:
    """Return why a driver of the pipeline may be alive, None when none gives a sign of life.

    A driver that is silent for as long as a lease allows (frozen, cut off, its home takes no writes) counts as none: an
    abort of its open transaction costs it one attempt of a batch.

    Only the home that the last run started from is read: the lease of a copy proves nothing.

    :param config: client configuration in librdkafka's names
    """
    tail = tail_of(config, pipeline)
    if tail is None:
        return None  # no pipeline of this name was ever started here
    claim = tail.claim
    if claim is None:
        return f"pipeline {pipeline} is at its first start: its ledger is there, and has no claim yet"
    home = Home(claim.home_path)
    if home.identity() != claim.home:
        return f"its home is not at {home} on this machine, so that its lease can't be read; do this where it is"
    held, life = lease.observe(home.lease)
    if held is None or life is not Liveness.ALIVE:
        return None
    seconds = time.time() - held.heartbeat
    return f"run {held.run} of pipeline {pipeline} lives: pid {held.pid} on {held.host}, heartbeat {seconds:.0f} s ago"
