"""A driver's progress in one line, and whether a line would say anything new."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow_provider_exactlyonce.control.status import DriverState, Status


def moved(before: Status | None, now: Status) -> bool:
    """Whether something that people or links want to know has changed; rates and heartbeats alone don't count."""
    return before is None or _essence(before) != _essence(now)


def _essence(status: Status) -> tuple[object, ...]:
    replayed = status.replay.done if status.replay else 0
    return (
        *(status.token, status.state, status.run, status.commit, status.batch),
        *(status.application_id, status.ui_url, replayed),
    )


def sentence(status: Status) -> str:
    """Return one line for a log."""
    replay = status.replay
    if replay is not None and replay.pending and status.state is DriverState.RUNNING:
        left = "" if replay.seconds_left is None else f", about {replay.seconds_left:,.0f} s left"
        return (
            f"{status.pipeline}: commits {replay.first} to {replay.last} are replayed without writing, at "
            f"{replay.done}{left}"
        )
    if status.state is DriverState.STARTING or (status.state is DriverState.RUNNING and status.commits_of_run == 0):
        return f"{status.pipeline}: driver {status.state.value}{_claimed(status)}, last commit {status.commit}"
    lag = "unknown" if status.lag is None else f"{status.lag:,}"
    parts = [
        f"batch {status.batch}",
        f"commit {status.commit}",
        f"{status.rows:,} rows",
        f"{status.rows_per_second:,.0f} rows/s",
        f"lag {lag}",
    ]
    if status.late_rows:
        parts.append(f"{status.late_rows:,} late rows left out")
    if status.watermark:
        parts.append(f"watermark {datetime.fromtimestamp(status.watermark / 1000, UTC).isoformat()}")
    end = "" if status.state is DriverState.RUNNING else f" ({status.state.value})"
    return f"{status.pipeline}: {', '.join(parts)}{end}"


def _claimed(status: Status) -> str:
    return f" as run {status.run}" if status.run else ""
