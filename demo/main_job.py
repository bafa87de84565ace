"""Runs the DAG over the kills, and watches it from outside."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce.control import restarts
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.restarts import Restart
from airflow_provider_exactlyonce.failpoints import VARIABLE as FAILPOINTS
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import ClaimRecord, CommitRecord, Record, ledger_topic
from demo import processes, topics
from demo.dag_run import DAGS
from demo.history import History, Kill, batches_of, read_updates
from demo.ledger_watch import LedgerWatch
from demo.stage import DemoFailedError

PIPELINE: Final = "shop-totals"
TOPIC: Final = "shop.totals"
_MASTER: Final = "local[2]"
_POLL_SECONDS: Final = 0.5
_MIGRATION_SECONDS: Final = 120.0


@dataclass(frozen=True, kw_only=True)
class DagResult:
    """A run of the DAG in which every task succeeded; times in seconds since the epoch.

    :param started: when its task ``stream`` began
    :param gate_opened: when its task ``gate`` ended
    :param restarts: what the operator has on record
    :param labels: what the kills interrupt, in order
    """

    started: float
    gate_opened: float
    restarts: Sequence[Restart]
    labels: Sequence[str]

    @property
    def kills(self) -> list[Kill]:
        """The deaths by SIGKILL; other deaths count as restarts that nobody asked for."""
        killed = [entry for entry in self.restarts if entry.exit_code == -signal.SIGKILL]
        labels = [*self.labels, *("SIGKILL" for _ in killed)]
        return [Kill(run=entry.run, at=entry.died, label=label) for entry, label in zip(killed, labels, strict=False)]

    @property
    def launches(self) -> dict[int, float]:
        """When the operator launched the driver of each run."""
        return {1: self.started, **{entry.run + 1: entry.relaunched for entry in self.restarts if entry.relaunched}}


class MainJob:
    """Airflow of the demo's own, with one connection to Spark and one to Kafka.

    :param folder: Airflow's home, the pipeline's home and the logs
    :param fail_points: where the driver dies, in the language of :mod:`airflow_provider_exactlyonce.failpoints`, and
        what a report calls it
    """

    def __init__(self, folder: Path, *, fail_points: Mapping[str, str]) -> None:
        self.log: Final = folder / "dag.log"
        self._folder = folder
        self._home = Home(folder / "home")
        self._fail_points = fail_points
        self._result = folder / "dag-result.json"
        self._migration: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Begin to make Airflow's database; it takes a while, and nothing else needs it yet."""
        command = processes.python("-m", "airflow", "db", "migrate")
        self._migration = processes.start(command, environment=self._environment({}), log=self.log)

    def wait_until_prepared(self) -> None:
        """Wait for the database.

        :raises DemoFailedError: when it could not be made
        """
        if self._migration is None or self._migration.wait(_MIGRATION_SECONDS) != 0:
            raise DemoFailedError("Airflow's database could not be made")

    def run(
        self, config: Mapping[str, Any], *, progress: Callable[[int, str], None], say: Callable[[str], None]
    ) -> DagResult:
        """Run the DAG to its end.

        :param config: Kafka client configuration
        :param progress: called with the number of records that are committed, and a text
        :param say: called once for each thing that happens
        :raises DemoFailedError: when a task did not succeed
        """
        command = processes.python("-m", "demo.dag_run", str(self._home.path), str(self._result))
        process = processes.start(command, environment=self._environment(config), log=self.log)
        reported = 0
        try:
            with LedgerWatch(PIPELINE, config, progress, say) as watch:
                while process.poll() is None:
                    for entry in restarts.read(self._home.restarts)[reported:]:
                        reported += 1
                        say(f"run {watch.run} is dead: {entry.cause}; the operator starts the next")
                    watch.look()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_POLL_SECONDS)
        finally:
            processes.end(process)
        if process.returncode != 0:
            raise DemoFailedError(f"the DAG did not succeed: {self._failures()}")
        tasks = json.loads(self._result.read_text())["tasks"]
        return DagResult(
            started=tasks["stream"]["started"],
            gate_opened=tasks["gate"]["ended"],
            restarts=restarts.read(self._home.restarts),
            labels=list(self._fail_points.values()),
        )

    def _failures(self) -> str:
        if not self._result.exists():
            return "it ended without a result"
        tasks = json.loads(self._result.read_text())["tasks"]
        return ", ".join(f"task {name} is {task['state']}" for name, task in tasks.items())

    def _environment(self, config: Mapping[str, Any]) -> dict[str, str]:
        airflow = self._folder / "airflow"
        connections = {
            "SPARK_DEFAULT": {"conn_type": "spark", "host": _MASTER},
            "KAFKA_DEFAULT": {"conn_type": "kafka", "extra": dict(config)},
        }
        return {
            **processes.spark_environment(self._folder / "tmp"),
            "AIRFLOW_HOME": str(airflow),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{airflow / 'airflow.db'}",
            **{f"AIRFLOW_CONN_{name}": json.dumps(connection) for name, connection in connections.items()},
            FAILPOINTS: ",".join(self._fail_points),
        }


def history(
    config: Mapping[str, Any], *, launches: Mapping[int, float], kills: Sequence[Kill]
) -> tuple[History, list[Record]]:
    """Read what the main job left in Kafka: its history, and the ledger's records in their order.

    :param launches: {run: when its driver was launched}; a run began with its claim where that is not known
    """
    with LedgerReader({**config, **topics.QUIET}, PIPELINE) as reader:
        records = [record for _, record in reader.records()]
    claims = {record.run: record.claimed / 1000 for record in reversed(records) if isinstance(record, ClaimRecord)}
    return History(
        batches=batches_of(record for record in records if isinstance(record, CommitRecord)),
        updates=read_updates(topics.read(config, TOPIC)),
        rows_written=sum(1 for _ in topics.read(config, TOPIC, committed=False)),
        sink_ends={name: topics.Ends(config, name).stable_and_high() for name in (TOPIC, ledger_topic(PIPELINE))},
        starts=[launches.get(run, claims[run]) for run in sorted(claims)],
        kills=kills,
    ), records
