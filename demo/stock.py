"""The same job with the same two kills through Spark's stock Kafka sink, restarted by a plain loop.

Spark's sink has no fail point, so the driver is killed from outside: in mid-write when some of the batch's rows are in
the topic, and after the write when all of them are and ``commits/<batch>`` is not there yet.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce.jars.cache import spark_connector_jars
from airflow_provider_exactlyonce.streaming.settings import DEFAULTS
from demo import processes, topics
from demo.history import Batch, Event, History, Kill, read_updates, source_ranges
from demo.stage import DemoFailedError
from demo.timed_kill import Aim, TimedKill

TOPIC: Final = "shop.totals.stock"
RESTART_DELAY_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.01
_SHOW_SECONDS: Final = 0.3
_RUNS_AT_MOST: Final = 8
_MASTER: Final = "local[2]"
_SHUFFLE_PARTITIONS: Final = 4


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

        :raises DemoFailedError: when a run ends badly that nobody killed
        """
        pending = list(aims)
        for _ in range(_RUNS_AT_MOST):
            process = self._start()
            try:
                kill = self._watch(process, pending[0] if pending else None)
            finally:
                processes.end(process)
            if kill is None:
                if process.returncode != 0:
                    raise DemoFailedError(f"the stock run ended with {process.returncode}; the end of {self.log}:")
                return self._history()
            self._tell(pending[0], kill)
            pending = [replace(pending[0], batch=pending[0].batch + 1), *pending[1:]] if kill.is_late else pending[1:]
            time.sleep(RESTART_DELAY_SECONDS)
        raise DemoFailedError(f"the stock run did not end in {_RUNS_AT_MOST} starts; the end of {self.log}:")

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

    def _watch(self, process: subprocess.Popen[bytes], aim: Aim | None) -> TimedKill | None:
        """Wait for the process to end, or for the moment to kill it; returns the kill if there was one."""
        kill = TimedKill(aim, self._config, TOPIC, self._checkpoint, self._events) if aim else None
        while process.poll() is None:
            self._show_progress()
            if kill and aim and kill.is_near():
                if kill.carry_out(process):
                    self._kills.append(Kill(run=len(self._starts), at=time.time(), label=aim.label))
                    return kill
                return None
            time.sleep(_LOOK_SECONDS)
        return None

    def _show_progress(self) -> None:
        if time.monotonic() - self._shown >= _SHOW_SECONDS:
            self._shown = time.monotonic()
            done = source_ranges(self._checkpoint)[: sum(1 for _ in (self._checkpoint / "commits").glob("[0-9]*"))]
            records = sum(end for _, end in done[-1].values()) if done else 0
            self._progress(records, f"records through the stock sink · run {len(self._starts)}")

    def _tell(self, aim: Aim, kill: TimedKill) -> None:
        moment = "right after" if aim.wholly_written else "in the middle of"
        late = "; too late, Spark had noted the batch already" if kill.is_late else ""
        self._say(f"stock sink: driver killed {moment} the writing of batch {aim.batch}{late}")

    def _history(self) -> History:
        return History(
            batches=_batches(self._checkpoint),
            updates=read_updates(topics.read(self._config, TOPIC)),
            rows_written=sum(1 for _ in topics.read(self._config, TOPIC, committed=False)),
            sink_ends={TOPIC: topics.Ends(self._config, TOPIC).stable_and_high()},
            starts=self._starts,
            kills=self._kills,
        )


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
