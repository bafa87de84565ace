"""The driver that runs the pipeline, and the end of the last driver."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from airflow_provider_exactlyonce import exceptions, process_identity
from airflow_provider_exactlyonce.control.lease import Liveness
from airflow_provider_exactlyonce.control.status import DriverError, DriverState
from airflow_provider_exactlyonce.doctor.facts import Facts
from airflow_provider_exactlyonce.doctor.findings import Finding, Remedy

_END_ONE: Final = "end one of them: the ledger's newest run goes on, the other one is fenced as soon as it writes"


def is_alone(facts: Facts) -> Iterator[Finding]:
    """Check that one driver at most runs the pipeline."""
    driver, claim = facts.driver, facts.tail.claim if facts.tail else None
    if driver is None or claim is None:
        return
    held = driver.lease
    if driver.life is Liveness.ALIVE and held is not None and 0 < held.run < claim.run:
        yield Finding(
            "two-drivers",
            f"run {held.run}, pid {held.pid} on {held.host}, holds the lease and lives, and run {claim.run}, pid "
            f"{claim.pid} on {claim.host}, has claimed the pipeline since from {claim.home_path}",
            _END_ONE,
        )
    elif driver.told_by_another and held is not None:
        yield Finding(
            "two-drivers",
            f"pid {held.pid} on {held.host} holds the lease, and another driver renews "
            f"{facts.home.home.status if facts.home else 'the status'}",
            _END_ONE,
        )
    for run in driver.superseded:
        yield Finding(
            "two-drivers",
            f"run {run.run}, pid {run.pid}, was superseded by run {claim.run}, and its process still lives here",
            f"end it: kill {run.pid}",
        )


def holds_no_stale_lease(facts: Facts) -> Iterator[Finding]:
    """Check that the holder of the lease lives."""
    driver = facts.driver
    held = driver.lease if driver else None
    if driver is None or held is None or driver.life is Liveness.ALIVE:
        return
    who = f"run {held.run}, pid {held.pid} on {held.host}"
    if driver.life is Liveness.STALE and held.machine == process_identity.this_machine():
        yield Finding(
            "silent-driver",
            f"{who}, holds the lease, its process is there, and has given no sign of life for "
            f"{time.time() - held.heartbeat:.0f} s: it is stopped, its machine is overloaded, or the home takes "
            "no writes, as its log then says",
            f"let it go on (kill -CONT {held.pid}), see that the home takes writes, or end it (kill -KILL {held.pid})",
        )
    else:
        ended = "has ended" if driver.life is Liveness.DEAD else "gives no sign of life"
        yield Finding(
            "stale-lease",
            f"the lease is of {who}, which {ended}",
            "nothing: the next start takes it over",
            Remedy.RELEASE,
        )


def _topic(error: DriverError) -> str:
    """Return the topic of the help: the name of an error of ours, the exit code of any other."""
    return error.kind if hasattr(exceptions, error.kind) else str(error.exit_code)


def did_not_fail(facts: Facts) -> Iterator[Finding]:
    """Tell why the last driver failed."""
    driver = facts.driver
    status = driver.status if driver else None
    lineage = facts.home.lineage if facts.home else None
    if driver is None or status is None or status.state is not DriverState.FAILED or status.error is None:
        return
    is_of_this_lineage = status.lineage is None or (lineage is not None and status.lineage == lineage.id)
    if facts.runs or not is_of_this_lineage:
        return
    yield Finding(
        "driver-failed",
        f"the last driver (run {status.run}) failed after commit {status.commit}: {status.error.kind}: "
        f"{status.error.message.splitlines()[0] if status.error.message else ''}",
        f"`exactlyonce help {_topic(status.error)}` says what to do; then start it again",
    )
