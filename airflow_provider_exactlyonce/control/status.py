"""The driver's account of itself, for supervisors and people, and its progress in one line."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from airflow_provider_exactlyonce import moments
from airflow_provider_exactlyonce.control import json_store


class DriverState(StrEnum):
    """Where the driver is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"  # everything that was asked for is committed
    STOPPED = "stopped"  # on request, nothing in doubt
    FAILED = "failed"


ENDED = frozenset({DriverState.FINISHED, DriverState.STOPPED, DriverState.FAILED})


@dataclass(frozen=True, kw_only=True)
class DriverError:
    """Why the driver failed.

    :param kind: class name of the error in :mod:`airflow_provider_exactlyonce.exceptions`, or of a foreign one
    :param decision: value of :class:`~airflow_provider_exactlyonce.exceptions.Decision`
    """

    kind: str
    decision: str
    exit_code: int
    message: str


@dataclass(frozen=True, kw_only=True)
class ReplayReport:
    """How far a replay is; kept in the lineage as ``replay.json`` too.

    :param first: the first commit that is run again
    :param last: the last one
    :param done: the newest one that has been
    :param seconds: how long it has taken
    :param seconds_left: an estimate, None before the first batch
    :param recorded_seconds: how long the same batches took when they were committed
    :param rows: rows that were recomputed
    :param records: source records of all commits from ``first`` to ``last``
    :param not_compared: (version, first, last) of commits of other versions, replayed by their source ranges only
    :param diverged: commits that gave other rows, which was accepted
    :param one_start_per_batch: why the query could not be steered, None when it was
    """

    first: int
    last: int
    done: int
    seconds: float = 0.0
    seconds_left: float | None = None
    recorded_seconds: float = 0.0
    rows: int = 0
    records: int = 0
    not_compared: list[tuple[str, int, int]] = field(default_factory=list)
    diverged: list[int] = field(default_factory=list)
    one_start_per_batch: str | None = None

    @property
    def pending(self) -> bool:
        """Whether commits remain."""
        return self.done < self.last


@dataclass(frozen=True, kw_only=True)
class StateSize:
    """The size of the state of one of Spark's stateful operators, and the cost of its newest change.

    :param operator: Spark's name of it
    :param rows: a group, a key's value of one state variable, an element of a list, an entry of a map; without timers
    :param memory_bytes: that its stores hold
    :param disk_bytes: of its tables on the executors' disks, None with state in memory
    :param changed: rows that the newest batch wrote or removed that wrote or removed any
    :param milliseconds: how long its tasks worked for that, taken together
    :param commit_milliseconds: how long they took to commit it to the checkpoint
    """

    operator: str
    rows: int
    memory_bytes: int
    disk_bytes: int | None
    changed: int
    milliseconds: int
    commit_milliseconds: int


@dataclass(frozen=True, kw_only=True)
class TableStatus:
    """A table as a sink has left it.

    :param commit: the sink's newest, 0 when there is none
    :param version: of the table, which that commit has made: a Delta table's version, an Iceberg table's snapshot; None
        when it is not known
    :param storage: ``delta`` or ``iceberg``
    :param columns: names of the columns that the sink writes, and their types in Spark's words
    """

    commit: int
    version: str | None
    storage: str
    columns: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Status:
    """The newest account of one driver.

    :param token: start token of the driver that wrote it
    :param commit: number of the pipeline's last commit, 0 for none
    :param batch: Spark's id of the last committed batch, -1 for none
    :param commits_of_run: batches that this run has committed
    :param rows: rows that this run has committed to its primary sink: the Kafka sink, or without it the first declared
    :param rows_by_sink: {sink: rows that this run has committed to it}, the primary one first; ``Kafka`` is the Kafka
        sink
    :param records: source records that the run's batches have read, each once, bad ones included
    :param late_rows: rows behind the watermark that operators have left out in this run
    :param late_total: rows behind the watermark that operators have left out in all runs, as far as the ledger knows
    :param rows_per_second: of the primary sink in the last batch, by the batch's duration
    :param lag: source records that are available and not committed, None while unknown
    :param watermark: event-time watermark of the last batch, milliseconds since the epoch, 0 for none
    :param committed: when the last commit was made, seconds since the epoch, None while there is none
    :param batch_began: when the batch that is under way was begun, seconds since the epoch, None between two
    :param replay: how far a replay of older commits is, None when there was none
    :param state_sizes: of the operators with state, empty while they are not known or there is none
    :param undelivered: {sink: commits that its target does not have yet}, of write-ahead logs that are behind
    :param tables: {sink: its table}, of those whose commits are versions of one
    :param guarantee: its guarantee from end to end, None before that is known
    :param weaker: why it can't have the guarantee that it declares, None when it can
    :param progressed: seconds since the epoch when it last committed, or had nothing to commit; 0 before it runs
    :param updated: seconds since the epoch
    """

    pipeline: str
    token: str
    state: DriverState
    run: int = 0
    lineage: str | None = None
    commit: int = 0
    batch: int = -1
    commits_of_run: int = 0
    rows: int = 0
    rows_by_sink: dict[str, int] = field(default_factory=dict)
    records: int = 0
    late_rows: int = 0
    late_total: int = 0
    rows_per_second: float = 0.0
    lag: int | None = None
    watermark: int = 0
    committed: float | None = None
    batch_began: float | None = None
    application_id: str | None = None
    ui_url: str | None = None
    error: DriverError | None = None
    replay: ReplayReport | None = None
    state_sizes: list[StateSize] = field(default_factory=list)
    undelivered: dict[str, int] = field(default_factory=dict)
    tables: dict[str, TableStatus] = field(default_factory=dict)
    guarantee: str | None = None
    weaker: str | None = None
    progressed: float = 0.0
    updated: float = field(default_factory=time.time)


def write(path: Path, status: Status, *, durable: bool = False) -> None:
    """Replace the status document."""
    json_store.write(path, asdict(status), durable=durable)


def read(path: Path) -> Status | None:
    """Return the status, None when there is none."""
    return json_store.load(path, Status)


def has_progressed(before: Status | None, now: Status) -> bool:
    """Whether something that people or links want to know has changed; rates and heartbeats alone don't count."""
    return before is None or _essence(before) != _essence(now)


def _essence(status: Status) -> tuple[object, ...]:
    replayed = status.replay.done if status.replay else 0
    return (
        *(status.token, status.state, status.run, status.commit, status.batch),
        *(status.application_id, status.ui_url, replayed),
    )


def progress_line(status: Status) -> str:
    """Return one line for a log."""
    replay = status.replay
    if replay is not None and replay.pending and status.state is DriverState.RUNNING:
        remaining = "" if replay.seconds_left is None else f", about {replay.seconds_left:,.0f} s left"
        return (
            f"{status.pipeline}: commits {replay.first} to {replay.last} are replayed without writing, at "
            f"{replay.done}{remaining}"
        )
    if status.state is DriverState.STARTING or (status.state is DriverState.RUNNING and status.commits_of_run == 0):
        run = f" as run {status.run}" if status.run else ""
        return f"{status.pipeline}: driver {status.state.value}{run}, last commit {status.commit}"
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
        parts.append(f"watermark {moments.text(status.watermark)}")
    end = "" if status.state is DriverState.RUNNING else f" ({status.state.value})"
    return f"{status.pipeline}: {', '.join(parts)}{end}"
