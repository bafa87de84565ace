"""What 500 waiting gates cost a triggerer, and how soon the task behind a gate is queued once a batch is committed.

A real scheduler and a real triggerer, on SQLite, beside a pipeline whose sink commits as in ``make bench-commit``.

*CPU*: gates that wait for commits which never come, started without a worker; the triggerer's two processes are
measured by /proc. Beside it, in a triggerer of the same Airflow, as many tasks that wait for a time (Airflow's own
``DateTimeSensorAsync``), and none at all. The pipeline commits once a second all the while.

*Latency*: from the commit's answer to the trigger's event (ours), and from there to ``queued_dttm`` of the next task
(Airflow's: the event's way to the database, the worker that resumes the gate, two rounds of the scheduler). Once with a
gate that resumes on a worker, once with one that ends in the triggerer (``start_from_trigger=True``), and beside them
Airflow's own sensor, which waits for a moment that is known beforehand (``DateTimeSensorAsync``).

Run it with ``make bench-gates``; the goals are 10 % of a core and 1 s of ours. Takes about 8 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.kafka import preflight
from airflow_provider_exactlyonce.streaming.commit.batch_transaction import BatchTransaction
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions
from airflow_provider_exactlyonce.streaming.sequencer.listener import SequencerListener
from airflow_provider_exactlyonce.streaming.settings import SequencerEndpoint
from benchmarks.commit import PARTITIONS, PIPELINE, SOURCE, TOPIC, batch_of, one_row_sink

RESULT = Path(__file__).parent / "results" / "gates.json"
FAR = 10**9
SPACING = 5.3  # seconds between two moments that Airflow's own sensor waits for

DAGS = """
from airflow.sdk import DAG, task
from airflow.providers.standard.sensors.date_time import DateTimeSensorAsync
from airflow_provider_exactlyonce.sensors.commit_gate import CommitGateSensor

GATES, TRIALS = {gates}, {trials}
with DAG("none", schedule=None):
    pass
with DAG("times", schedule=None, max_active_tasks=GATES):
    for number in range(GATES):
        DateTimeSensorAsync(task_id=f"t{{number}}", target_time="2100-01-01T00:00:00+00:00", start_from_trigger=True)
with DAG("gates", schedule=None, max_active_tasks=GATES):
    for number in range(GATES):
        CommitGateSensor(
            task_id=f"g{{number}}", pipeline="{pipeline}", commit={far} + number, timeout=10**6, start_from_trigger=True
        )

@task
def behind(number):
    pass

for name, options in (("worker", dict(deferrable=True)), ("triggerer", dict(start_from_trigger=True))):
    with DAG(name, schedule=None, params={{"base": 0}}, max_active_tasks=2 * TRIALS):
        for number in range(1, TRIALS + 1):
            gate = CommitGateSensor(
                task_id=f"gate{{number}}",
                pipeline="{pipeline}",
                commit="{{{{ params.base + %d }}}}" % number,
                timeout=3600,
                **options,
            )
            gate >> behind.override(task_id=f"behind{{number}}")(number)

with DAG("moments", schedule=None, params={{"base": 0}}, max_active_tasks=2 * TRIALS):
    for number in range(1, TRIALS + 1):
        moment = "macros.datetime.utcfromtimestamp(params.base + %f).isoformat() + '+00:00'" % ({spacing} * number)
        sensor = DateTimeSensorAsync(task_id=f"gate{{number}}", target_time="{{{{ " + moment + " }}}}")
        sensor >> behind.override(task_id=f"behind{{number}}")(number)
"""


class Stream:
    """A pipeline that commits a batch when told to, or once a second."""

    def __init__(self, run: Run, sink: BatchTransaction, topic_id: str) -> None:
        self._run, self._sink, self._topic_id = run, sink, topic_id
        self._lock = threading.Lock()
        self.commits = 0

    def commit(self) -> float:
        """Commit a batch; returns when that was answered."""
        with self._lock:
            self._sink.begin(batch_of(self._run.lineage.id, self.commits, self._topic_id))
            self._sink.write(self.commits)  # type: ignore[arg-type]
            self._sink.pre_commit(0)
            self._sink.commit()
            self.commits += 1
            return time.time()

    @contextmanager
    def every_second(self) -> Iterator[None]:
        ended = threading.Event()

        def commit() -> None:
            while not ended.wait(1.0):
                self.commit()

        thread = threading.Thread(target=commit)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@contextmanager
def streaming(config: dict[str, str], folder: Path) -> Iterator[Stream]:
    admin = AdminClient(dict(config))
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (TOPIC, SOURCE)]).values():
        future.result(30)
    options = RunOptions(config=config, token="bench", version="v", transaction_timeout_milliseconds=60_000)
    run = Run(Home(folder / "home"), PIPELINE, options)
    run.start()
    topics = preflight.check_topics(run.client, sinks=[TOPIC], sources=[SOURCE])
    try:
        with SequencerListener(SequencerEndpoint(host="127.0.0.1", bind_address="127.0.0.1")) as listener:
            yield Stream(run, one_row_sink(run, topics[TOPIC], listener), topics[SOURCE].topic_id)
    finally:
        run.close()


class Airflow:
    """An Airflow of its own: database, scheduler, API server, DAG processor; triggerers are started as needed."""

    def __init__(self, folder: Path, config: dict[str, str]) -> None:
        self.home = folder / "airflow"
        dags = folder / "dags"
        dags.mkdir()
        self.dags = dags
        with closing(socket.create_server(("127.0.0.1", 0))) as probe:
            port = int(probe.getsockname()[1])
        address = f"http://127.0.0.1:{port}"
        settings = {
            "API__BASE_URL": address,
            "API__HOST": "127.0.0.1",
            "API__PORT": str(port),
            "API__WORKERS": "1",
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "CORE__DAGS_FOLDER": str(dags),
            "CORE__EXECUTION_API_SERVER_URL": f"{address}/execution/",
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__PARALLELISM": "4",
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home / 'airflow.db'}",
            "TRIGGERER__CAPACITY": "1000",
            "USAGE_DATA_COLLECTION__ENABLED": "False",
        }
        self.environment = {
            **os.environ,
            **{f"AIRFLOW__{name}": value for name, value in settings.items()},
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": config}),
            "PYTHONPATH": os.getcwd(),
        }
        self.run("db", "migrate")

    def run(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "airflow", *arguments]
        subprocess.run(command, env=self.environment, check=True, capture_output=True)

    @contextmanager
    def running(self, *arguments: str) -> Iterator[int]:
        """Run a program of Airflow, with all that it starts; gives its process group."""
        with (self.home / f"{arguments[0]}.out").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "airflow", *arguments],
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    @contextmanager
    def triggerer(self) -> Iterator[int]:
        with self.running("triggerer", "--skip-serve-logs") as group:
            yield group

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"file:{self.home / 'airflow.db'}?mode=ro", uri=True, timeout=60)) as database:
            return database.execute(sql, values).fetchall()

    def states(self, dag: str) -> list[str]:
        return [state for (state,) in self.query("SELECT state FROM task_instance WHERE dag_id = ?", dag)]


def wait(condition: Callable[[], object], what: str, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.5)


def cpu_seconds(triggerer: int) -> float:
    """Return the CPU that a triggerer and all that it has started have used so far; raises when it has ended."""
    parent = psutil.Process(triggerer)
    spent = [process.cpu_times() for process in (parent, *parent.children(recursive=True))]
    if len(spent) < 2:
        raise RuntimeError("the triggerer runs no triggers: see triggerer.out")
    return float(sum(times.user + times.system for times in spent))


def measure_cpu(airflow: Airflow, stream: Stream, dag: str, number: int, seconds: int) -> dict[str, Any]:
    """Let a DAG's tasks wait in a triggerer; returns what share of a core that takes."""
    with airflow.triggerer() as triggerer, stream.every_second():
        airflow.run("dags", "trigger", dag)
        wait(lambda: len(trigger_logs(airflow, dag, "*")) == number, f"{number} tasks of {dag} wait in the triggerer")
        time.sleep(10)  # the last ones have been started
        samples = []
        for _ in range(5):
            before, began = cpu_seconds(triggerer), time.monotonic()
            time.sleep(seconds / 5)
            samples.append((cpu_seconds(triggerer) - before) / (time.monotonic() - began))
        if number and set(airflow.states(dag)) != {"deferred"}:
            raise RuntimeError(f"{dag}: {sorted(set(airflow.states(dag)))}")
    airflow.run("dags", "delete", dag, "--yes")
    return {"waiting": number, "share_of_a_core": statistics.median(samples), "samples": samples}


def measure_latency(airflow: Airflow, stream: Stream, dag: str, trials: int) -> dict[str, Any]:
    """Commit for one gate after the other; returns the seconds of each step."""
    with airflow.triggerer():
        airflow.run("dags", "trigger", dag, "--conf", json.dumps({"base": stream.commits}))
        wait(lambda: len(trigger_logs(airflow, dag, "gate*")) == trials, "the gates wait")
        time.sleep(5)
        committed = []
        done_query = (
            "SELECT count(*) FROM task_instance WHERE dag_id = ? AND task_id LIKE 'behind%' AND state = 'success'"
        )
        for number in range(1, trials + 1):
            committed.append(stream.commit())
            wait(lambda n=number: airflow.query(done_query, dag)[0][0] == n, f"task {number} behind")  # type: ignore[misc]
            time.sleep(1.7)  # at another point of the pollers' rounds
    return steps(airflow, dag, committed)


def measure_moments(airflow: Airflow, trials: int) -> dict[str, Any]:
    """Let Airflow's own sensor wait for one moment after the other; returns the seconds of each step."""
    dag, base = "moments", round(time.time()) + 40.0
    with airflow.triggerer():
        airflow.run("dags", "trigger", dag, "--conf", json.dumps({"base": base}))
        done_query = (
            "SELECT count(*) FROM task_instance WHERE dag_id = ? AND task_id LIKE 'behind%' AND state = 'success'"
        )
        wait(lambda: airflow.query(done_query, dag)[0][0] == trials, "the tasks behind the moments")
    return steps(airflow, dag, [base + SPACING * number for number in range(1, trials + 1)])


def steps(airflow: Airflow, dag: str, happened: list[float]) -> dict[str, Any]:
    """Return how long it took from what was waited for to the trigger's event, and from there to the next task.

    The first one stands apart: in a triggerer that has just begun it takes seconds more.
    """
    event_seconds, queued_seconds = [], []
    for number, happened_at in enumerate(happened, start=1):
        fired = fired_at(airflow, dag, f"gate{number}")
        [(text,)] = airflow.query(
            "SELECT queued_dttm FROM task_instance WHERE dag_id = ? AND task_id = ?", dag, f"behind{number}"
        )
        event_seconds.append(fired - happened_at)
        queued_seconds.append(moment(text) - fired)
    return {
        "happened_to_event": event_seconds[1:],
        "event_to_queued": queued_seconds[1:],
        "first": [event_seconds[0], queued_seconds[0]],
    }


def fired_at(airflow: Airflow, dag: str, task: str) -> float:
    """Return when a task's trigger fired, as its log says."""
    for log in trigger_logs(airflow, dag, task):
        for line in log.read_text().splitlines():
            entry = json.loads(line)
            if entry.get("event") == "Trigger fired event":
                return datetime.fromisoformat(entry["timestamp"].replace("Z", "+00:00")).timestamp()
    raise LookupError(f"the trigger of {dag}.{task} has not fired")


def trigger_logs(airflow: Airflow, dag: str, task: str) -> list[Path]:
    return list((airflow.home / "logs").rglob(f"dag_id={dag}/*/task_id={task}/*.trigger.*.log"))


def moment(text: str) -> float:
    return datetime.fromisoformat(text if "+" in text else f"{text}+00:00").timestamp()


def report(found: dict[str, Any]) -> None:
    print(f"{'waiting in one triggerer':<44}{'share of a core':>16}")
    for name, result in found.get("cpu", {}).items():
        print(f"{name:<44}{result['share_of_a_core']:>15.1%}")
    print(f"\n{'seconds, median (max)':<52}{'commit to event':>18}{'event to queued':>18}")
    for name, result in found.get("latency", {}).items():
        measured = result["happened_to_event"], result["event_to_queued"]
        shown = [f"{statistics.median(values):.2f} ({max(values):.2f})" for values in measured]
        print(f"{name:<52}{shown[0]:>18}{shown[1]:>18}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=500)
    parser.add_argument("--seconds", type=int, default=40, help="how long the CPU is measured, each time")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--parts", nargs="+", default=["cpu", "latency"], help="the rest is kept as it was measured")
    options = parser.parse_args()
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    with tempfile.TemporaryDirectory() as name, EmbeddedBroker(Path(name, "broker")) as broker:
        folder, config = Path(name), {"bootstrap.servers": broker.bootstrap_servers}
        airflow = Airflow(folder, config)
        text = DAGS.format(gates=options.gates, trials=options.trials, pipeline=PIPELINE, far=FAR, spacing=SPACING)
        (airflow.dags / "waiting.py").write_text(text)
        with (
            streaming(config, folder) as stream,
            airflow.running("api-server"),
            airflow.running("dag-processor"),
            airflow.running("scheduler"),
        ):
            dag_count_query = "SELECT count(*) FROM serialized_dag"
            wait(lambda: airflow.query(dag_count_query)[0][0] >= 6, "the DAGs are known")
            if "cpu" in options.parts:
                results["cpu"] = {
                    label: measure_cpu(airflow, stream, dag, number, options.seconds)
                    for label, dag, number in (
                        ("nothing", "none", 0),
                        (f"{options.gates} times (Airflow's own sensor)", "times", options.gates),
                        (f"{options.gates} gates", "gates", options.gates),
                    )
                }
            if "latency" in options.parts:
                results["latency"] = {
                    "resumed on a worker": measure_latency(airflow, stream, "worker", options.trials),
                    "ended in the triggerer": measure_latency(airflow, stream, "triggerer", options.trials),
                    "Airflow's own sensor of a time, resumed on a worker": measure_moments(airflow, options.trials),
                }
        results["machine"] = {"cores": os.cpu_count(), "load": os.getloadavg()}
    report(results)
    options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
