"""The same job with the same two kills through Spark's stock Kafka sink, restarted by a plain loop.

Spark's sink has no fail point, so a watcher outside the driver kills: in mid-write when some of the batch's rows are
in the topic, and after the write when all of them are and ``commits/<batch>`` is not there yet.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce.devkit.jars import spark_connector_jars
from airflow_provider_exactlyonce.streaming.settings import DEFAULTS
from demo import processes, topics
from demo.history import SOURCE_TOPIC, Batch, Event, Expectation, History, Kill, Ranges, read_updates

TOPIC: Final = "shop.totals.stock"
RESTART_DELAY_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 0.001  # between two looks when the moment is near
_FAR_SECONDS: Final = 0.05
_SHOW_SECONDS: Final = 0.3
_RUNS_AT_MOST: Final = 8
_MASTER: Final = "local[2]"
_SHUFFLE_PARTITIONS: Final = 4


class StockFailedError(Exception):
    """A driver of the stock sink ended by itself, and not well."""


@dataclass(frozen=True, kw_only=True)
class Aim:
    """When to kill.

    :param batch: in which batch
    :param wholly_written: after its last record rather than when a quarter of them are written
    """

    batch: int
    wholly_written: bool


class StockRun:
    """Runs the job to its end over the kills that were asked for.

    :param config: Kafka client configuration
    :param folder: where the checkpoint and the log go
    :param events: the source's records
    :param progress: called with the number of records that are processed, and a text
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        folder: Path,
        events: Sequence[Event],
        progress: Callable[[int, str], None],
        say: Callable[[str], None],
    ) -> None:
        self.log: Final = folder / "stock.log"
        self._temporary: Final = folder / "tmp"
        self._config = config
        self._checkpoint = folder / "stock-checkpoint"
        self._events = events
        self._progress = progress
        self._say = say
        self._starts: list[float] = []
        self._kills: list[Kill] = []
        self._shown = 0.0

    def run(self, aims: Sequence[Aim]) -> History:
        """Run, kill, restart, until a run ends by itself.

        :raises StockFailedError: when a run ends badly that nobody killed
        """
        left = list(aims)
        for _ in range(_RUNS_AT_MOST):
            process = self._start()
            try:
                killed = self._watch(process, left[0] if left else None)
            finally:
                processes.end(process)
            if not killed:
                if process.returncode != 0:
                    raise StockFailedError(f"the stock run ended with {process.returncode}; the end of {self.log}:")
                return self._history()
            left = left[1:] if self._hit(left[0]) else [replace(left[0], batch=left[0].batch + 1), *left[1:]]
            time.sleep(RESTART_DELAY_SECONDS)
        raise StockFailedError(f"the stock run did not end in {_RUNS_AT_MOST} starts; the end of {self.log}:")

    def _start(self) -> subprocess.Popen[bytes]:
        settings = {**DEFAULTS, "spark.sql.shuffle.partitions": str(_SHUFFLE_PARTITIONS), "spark.ui.enabled": "false"}
        command = [
            *(processes.spark_submit(), "--master", _MASTER),
            *("--jars", ",".join(map(str, spark_connector_jars()))),
            *(argument for name, value in settings.items() for argument in ("--conf", f"{name}={value}")),
            str(Path(__file__).with_name("stock_job.py")),
            *(self._config["bootstrap.servers"], TOPIC, str(self._checkpoint)),
        ]
        self._starts.append(time.time())
        return processes.start(command, environment=processes.spark_environment(self._temporary), log=self.log)

    def _watch(self, process: subprocess.Popen[bytes], aim: Aim | None) -> bool:
        """Wait for the process to end, or for the moment to kill it; True if it was killed."""
        wait = _Wait(self._config, self._checkpoint, self._events) if aim else None
        while process.poll() is None:
            if wait and aim and wait.is_over(aim):
                os.killpg(process.pid, signal.SIGKILL)
                self._kills.append(Kill(run=len(self._starts), at=time.time()))
                process.wait()
                return True
            self._show_progress()
            time.sleep(_CLOSE_SECONDS if wait and aim and wait.is_near(aim) else _FAR_SECONDS)
        return False

    def _show_progress(self) -> None:
        if time.monotonic() - self._shown >= _SHOW_SECONDS:
            self._shown = time.monotonic()
            done = source_ranges(self._checkpoint)[: len(_numbers(self._checkpoint / "commits"))]
            taken = sum(end for _, end in done[-1].values()) if done else 0
            self._progress(taken, f"records through the stock sink · run {len(self._starts)}")

    def _hit(self, aim: Aim) -> bool:
        where = "right after" if aim.wholly_written else "in the middle of"
        missed = (self._checkpoint / "commits" / str(aim.batch)).exists()
        late = "; too late, Spark had it in its commit log already" if missed else ""
        self._say(f"stock sink: driver killed {where} the writing of batch {aim.batch}{late}")
        return not missed

    def _history(self) -> History:
        return History(
            batches=_batches(self._checkpoint),
            updates=read_updates(topics.read(self._config, TOPIC)),
            rows_written=sum(1 for _ in topics.read(self._config, TOPIC, committed=False)),
            sink_ends={TOPIC: topics.Ends(self._config, TOPIC).stable_and_high()},
            starts=self._starts,
            kills=self._kills,
        )


class _Wait:
    """Knows when the topic holds what an aim waits for, in a run that has just been started."""

    def __init__(self, config: Mapping[str, Any], checkpoint: Path, events: Sequence[Event]) -> None:
        self._ends = topics.Ends(config, TOPIC)
        self._rows_at_start = self._ends.high()
        self._checkpoint = checkpoint
        self._expectation = Expectation(events)
        self._due: list[int] = []  # rows of each batch whose offsets are known
        self._first = len(_numbers(checkpoint / "commits"))  # the batch that this run begins with

    def is_near(self, aim: Aim) -> bool:
        """Whether the batch before has begun."""
        return (self._checkpoint / "offsets" / str(aim.batch - 1)).exists()

    def is_over(self, aim: Aim) -> bool:
        """Whether the moment has come."""
        while (number := len(self._due)) <= aim.batch and (self._checkpoint / "offsets" / str(number)).exists():
            self._due.append(len(self._expectation.next(source_ranges(self._checkpoint)[number])))
        if len(self._due) <= aim.batch:
            return False
        before, own = sum(self._due[self._first : aim.batch]), self._due[aim.batch]
        return self._ends.high() >= self._rows_at_start + before + (own if aim.wholly_written else own // 4)


def _numbers(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.glob("[0-9]*"))


def source_ranges(checkpoint: Path) -> list[Ranges]:
    """Return what each batch of a checkpoint takes from the source, in order."""
    ranges: list[Ranges] = []
    before: dict[int, int] = {}
    for number in _numbers(checkpoint / "offsets"):
        text = (checkpoint / "offsets" / str(number)).read_text().splitlines()[-1]
        after = {int(partition): end for partition, end in json.loads(text)[SOURCE_TOPIC].items()}
        ranges.append({partition: (before.get(partition, 0), end) for partition, end in after.items()})
        before = after
    return ranges


def _batches(checkpoint: Path) -> list[Batch]:
    return [
        Batch(
            number=number,
            source=source,
            started=(checkpoint / "offsets" / str(number)).stat().st_mtime,
            committed=(checkpoint / "commits" / str(number)).stat().st_mtime,
        )
        for number, source in enumerate(source_ranges(checkpoint))
    ]
