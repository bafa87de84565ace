"""A pipeline's metrics in Airflow: its watcher reads them from the home, and sends them through Airflow's Stats.

All are gauges of what is on disk: they are right whichever process sends them, and however often, and a retry or a
second watcher counts nothing twice. Each name has two metrics, as Airflow's own have:
``exactlyonce.lag_records`` with the pipeline as a tag, and, unless ``[metrics] legacy_names_on`` is off,
``exactlyonce.shop-totals.lag_records`` for backends without tags.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.control import restarts, standbys
from airflow_provider_exactlyonce.control.pipeline_state import PipelineState, state_of

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.control.home import Home
    from airflow_provider_exactlyonce.control.status import Status

#: How often a watcher reports, in seconds; asked more often it does nothing.
INTERVAL_SECONDS: Final = 10.0

#: Of documents, in one report; it reads the savepoints' as well.
_READS: Final = 13

#: A report under way at the end is waited for; where the home does not answer, a time-out's stop can't wait for it.
_LAST_REPORT_SECONDS: Final = 1.0

PREFIX: Final = "exactlyonce"

_log = logging.getLogger(__name__)

#: Every metric: its name, which ends with its unit, and its meaning.
METRICS: Final[Mapping[str, str]] = {
    "commit_age_seconds": "time since the last commit",
    "lag_records": "source records (offsets), and versions of source tables, that are available and not committed",
    "transaction_age_seconds": "time since the batch that is under way was begun; 0 between two batches",
    "watermark_age_seconds": "how far the output's event time is behind; only with a watermark",
    "savepoint_age_seconds": "time since the newest savepoint; only once there is one",
    "drivers_running": "1 while a driver starts or runs, else 0",
    "standbys_ready": "1 while a standby waits, ready to take over, else 0",
    "restarts_per_hour": "drivers that died within the last hour and were to be started again",
    "commits_total": "number of the last commit; it only grows, over all runs",
    "runs_total": "number of the run; it grows with every start of a driver",
    "rows_of_run": "rows that this run has committed to its primary sink, the Kafka sink or else the first declared; "
    "it begins at 0 with each run",
    "rows_of_run_for_sink": "the same for each sink, with the tag `sink`; only for pipelines with several sinks",
    "records_of_run": "source records that this run's batches have read, each once, bad ones included",
    "late_rows_of_run": "rows behind the watermark that operators have left out",
    "late_rows_total": "the same over all runs, as the ledger has it",
    "guarantee_weaker": "1 while a pipeline runs that can't have the guarantee it declares (`allow_weaker`), else 0",
    "state_rows": "rows of state: values, elements and entries of keys; only with state, as the next two",
    "state_bytes": "state on the executors' disks, or in memory with the hashmap backend",
    "state_milliseconds_per_row": "work of the tasks on a row of state, in the newest batch that changed any",
}


class Reporter:
    """Reports one pipeline, at most every :data:`INTERVAL_SECONDS`; reads its home, less often where that costs."""

    def __init__(self, home: Home) -> None:
        self._home: Final = home
        self._next = 0.0

    def report(self) -> None:
        """Send the known metrics, unless just done. Never raises: metrics must not cost a stream its watcher."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._home.look_every(INTERVAL_SECONDS, reads=_READS)
        try:
            state, status = state_of(self._home)
            if status is not None:
                for name, value in measure(self._home, state, status, time.time()).items():
                    _send(name, status.pipeline, value)
                if len(status.rows_by_sink) > 1:
                    for sink, rows in status.rows_by_sink.items():
                        _send("rows_of_run_for_sink", status.pipeline, rows, sink)
        except Exception:
            _log.warning("the metrics of %s could not be sent", self._home.path, exc_info=True)


def measure(home: Home, state: PipelineState, status: Status, now: float) -> Mapping[str, float]:
    """Return the known measurements of a pipeline, by the names in :data:`METRICS`.

    :param now: seconds since the epoch
    """
    from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints

    ages = {
        "commit_age_seconds": status.committed,
        "watermark_age_seconds": status.watermark / 1000 if status.watermark else None,
        "savepoint_age_seconds": max(
            (savepoint.created / 1000 for savepoint in Savepoints(home.savepoints).list()), default=None
        ),
    }
    values = {name: max(0.0, now - since) for name, since in ages.items() if since is not None}
    if status.lag is not None:
        values["lag_records"] = status.lag
    deaths = [entry.died for entry in restarts.read(home.restarts)]
    return {
        **values,
        "transaction_age_seconds": 0.0 if status.batch_began is None else max(0.0, now - status.batch_began),
        "drivers_running": float(state in (PipelineState.STARTING, PipelineState.RUNNING)),
        "standbys_ready": float(standbys.waiting(home) is not None),
        "restarts_per_hour": sum(now - death < 3600 for death in deaths),
        "commits_total": status.commit,
        "runs_total": status.run,
        "rows_of_run": status.rows,
        "records_of_run": status.records,
        "late_rows_of_run": status.late_rows,
        "late_rows_total": status.late_total,
        "guarantee_weaker": float(status.weaker is not None),
        **_state(status),
    }


def _state(status: Status) -> Mapping[str, float]:
    sizes = status.state_sizes
    if not sizes:
        return {}
    values: dict[str, float] = {
        "state_rows": sum(size.rows for size in sizes),
        "state_bytes": sum(size.memory_bytes if size.disk_bytes is None else size.disk_bytes for size in sizes),
    }
    if changed := sum(size.changed for size in sizes):
        values["state_milliseconds_per_row"] = sum(size.milliseconds for size in sizes) / changed
    return values


@contextmanager
def reporting(home: Home) -> Iterator[None]:
    """Report a pipeline in a thread of its own, while the block supervises it."""
    reporter = Reporter(home)
    done = threading.Event()

    def work() -> None:
        while True:
            reporter.report()
            if done.wait(INTERVAL_SECONDS):
                return

    thread = threading.Thread(target=work, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(_LAST_REPORT_SECONDS)


def _send(name: str, pipeline: str, value: float, sink: str | None = None) -> None:
    from airflow.sdk import conf
    from airflow.sdk.observability import stats

    stats.gauge(f"{PREFIX}.{name}", value, tags={"pipeline": pipeline, **({} if sink is None else {"sink": sink})})
    if conf.getboolean("metrics", "legacy_names_on", fallback=True):
        parts = [pipeline, name] if sink is None else [pipeline, name, sink]
        stats.gauge(".".join([PREFIX, *(part.replace(".", "__") for part in parts)]), value)
