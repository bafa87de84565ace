"""Reads which driver runs a pipeline.

The lease is read after the ledger: a driver holds the lease before it claims the pipeline.
"""

from __future__ import annotations

import os
import time
from typing import Final

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control import status as statuses
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.lease import Lease, Liveness, heartbeat_seconds, stale_seconds
from airflow_provider_exactlyonce.control.status import ENDED, Status
from airflow_provider_exactlyonce.doctor.facts import DriverFacts, Facts
from airflow_provider_exactlyonce.ledger.records import ClaimRecord
from airflow_provider_exactlyonce.polling import poll_until

#: Older claims are of processes that have long ended.
_CLAIMS: Final = 20
_POLL_SECONDS: Final = 0.2


def look(facts: Facts, home: Home) -> DriverFacts:
    """Look at lease, status and the processes of this machine."""
    held, life = leases.observe(home.lease)
    status = statuses.read(home.status)
    runs = facts.history.runs if facts.history else []
    return DriverFacts(
        lease=held,
        life=life,
        status=status,
        told_by_another=life is Liveness.ALIVE and held is not None and _is_told_by_another(home, held, status),
        superseded=[
            run for run in runs[-_CLAIMS:-1] if run.pid not in (os.getpid(), runs[-1].pid) and _lives_here(run)
        ],
    )


def _is_told_by_another(home: Home, held: Lease, status: Status | None) -> bool:
    """Watch whether another driver than the lease's holder goes on to renew the status."""
    if status is None or status.token == held.token or status.state in ENDED:
        return False
    if time.time() - status.updated > stale_seconds(home.lease):
        return False

    def renewed() -> Status | None:
        now = statuses.read(home.status)
        return now if now is not None and (now.token, now.updated) != (status.token, status.updated) else None

    now = poll_until(renewed, seconds=2 * heartbeat_seconds(home.lease) + 1, poll_seconds=_POLL_SECONDS)
    return now is not None and now.token == status.token  # else the lease's holder has taken it over


def _lives_here(run: ClaimRecord) -> bool:
    """Tell whether the process that made a claim lives on this machine: one that began before it has its pid."""
    started = process_identity.process_start(run.pid) if process_identity.is_here(run.machine, run.host) else None
    if started is None:
        return False
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted + started / os.sysconf("SC_CLK_TCK") < run.claimed / 1000
