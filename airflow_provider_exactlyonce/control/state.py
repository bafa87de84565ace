"""What state a pipeline is in, as its home tells."""

from __future__ import annotations

from enum import StrEnum

from airflow_provider_exactlyonce.control import drivers
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control import status as statuses
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.lease import Life
from airflow_provider_exactlyonce.control.status import ENDED, Status


class PipelineState(StrEnum):
    """A driver's own account of its life, as far as it agrees with what is seen of it."""

    ABSENT = "absent"  # no driver has ever reported
    STARTING = "starting"
    RUNNING = "running"
    SILENT = "silent"  # it holds the pipeline, and gives no sign of life
    FINISHED = "finished"  # everything that was asked for is committed
    STOPPED = "stopped"  # on request, nothing in doubt
    FAILED = "failed"  # its supervisor may be about to start the next one
    LOST = "lost"  # it ended without an account; its supervisor may be about to start the next one


def state_of(home: Home) -> tuple[PipelineState, Status | None]:
    """Return a pipeline's state, and the last account of its last driver. Never waits."""
    held, status = leases.read(home.lease), statuses.read(home.status)
    life = leases.life(held)
    if held is not None and life is Life.STALE:
        return PipelineState.SILENT, status
    if held is not None and life is Life.ALIVE:
        own = status is not None and status.token == held.token
        return PipelineState(status.state) if status is not None and own else PipelineState.STARTING, status
    if drivers.is_starting(home):
        return PipelineState.STARTING, status
    if status is None:
        return PipelineState.ABSENT, None
    return PipelineState(status.state) if status.state in ENDED else PipelineState.LOST, status
