"""Airflow's parts as processes that can be killed one by one, and its API as a user's hand."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import psutil

from airflow_provider_exactlyonce.control import lease, requests
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.streaming.settings import TOKEN_VARIABLE
from tests.integration.airflow.conftest import Airflow
from tests.ports import free_port
from tests.waiting import eventually

CONTRACT_DRIVER = Path(__file__).parents[1] / "control" / "contract_driver.py"
DAGS = Path(__file__).with_name("dags_supervised")
#: of one request to the API
MOST_FAILURES = 10

#: Stands for Spark's launcher, under a name that the Spark provider lets a connection choose: becomes the application.
LAUNCHER = f"""#!{sys.executable}
import os, sys
at = sys.argv.index({str(CONTRACT_DRIVER)!r})
os.execv(sys.executable, [sys.executable, *sys.argv[at:]])
"""


def is_driver(process: psutil.Process) -> bool:
    try:
        return TOKEN_VARIABLE in process.environ()
    except psutil.NoSuchProcess:  # it has ended meanwhile, and may be a zombie
        return False


class Parts:
    """API server, scheduler with its workers, and triggerer of one Airflow home."""

    def __init__(self, airflow: Airflow, folder: Path) -> None:
        self.airflow = airflow
        self.folder = folder
        self.port = free_port()
        self.openlineage = folder / "openlineage.json"
        launcher = folder / "spark3-submit"
        launcher.write_text(LAUNCHER)
        launcher.chmod(0o755)
        settings = {
            "API__HOST": "127.0.0.1",
            "API__PORT": str(self.port),
            "API__BASE_URL": f"http://127.0.0.1:{self.port}",
            "API__WORKERS": "1",
            "CORE__DAGS_FOLDER": str(DAGS),
            "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{self.port}/execution/",
            "CORE__PARALLELISM": "4",
            "LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
            "LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
            "OPENLINEAGE__NAMESPACE": "tests",
            "OPENLINEAGE__TRANSPORT": json.dumps(
                {"type": "file", "log_file_path": str(self.openlineage), "append": True}
            ),
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "2",
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
            "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
            "SCHEDULER__JOB_HEARTBEAT_SEC": "2",
            "TRIGGERER__JOB_HEARTBEAT_SEC": "2",
            "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "6",
            "WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
            "WORKERS__EXECUTION_API_TIMEOUT": "30",
        }
        connection = {"conn_type": "spark", "host": "local[1]", "extra": {"spark-binary": "spark3-submit"}}
        self.environment = {
            **airflow.environment,
            **{f"AIRFLOW__{name}": value for name, value in settings.items()},
            "AIRFLOW_CONN_SPARK_CONTRACT": json.dumps(connection),
            "TEST_CONTINUOUS_HOME": str(folder / "continuous"),
            "PATH": f"{folder}{os.pathsep}{airflow.environment['PATH']}",
        }
        self.running: dict[str, psutil.Popen] = {}
        self._groups: list[int] = []
        self._token = ""

    def start(self, *names: str) -> None:
        for name in names:
            with (self.folder / f"{name}.log").open("ab") as log:
                self.running[name] = psutil.Popen(
                    self.airflow.command(name), env=self.environment, stdout=log, stderr=log, start_new_session=True
                )
            self._groups.append(self.running[name].pid)

    def start_all(self) -> None:
        """Start all parts, and wait until tasks can be run."""
        # There is no DAG processor.
        self.airflow.run(self.airflow.command("dags", "reserialize"), self.environment)
        self.start("api-server", "scheduler", "triggerer")
        self.ready()

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End a part with all its processes but drivers, which are on their own."""
        part = self.running.pop(name)
        tree = [part, *(child for child in part.children(recursive=True) if not is_driver(child))]
        for process in tree if number is signal.SIGKILL else [part]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        part.wait()

    def close(self) -> None:
        for name in list(self.running):
            self.kill(name)
        for group in self._groups:  # parts' parts hide their environment behind a title
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        for pid in self.airflow.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: self.airflow.processes() == [], "nothing of it is left")

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Ask the API, again when it fails: SQLite refuses a write at once if another process overtook its read.

        A DAG run that is "there already" after such a failure was made by it.
        """
        failures = 0
        while True:
            try:
                return self._call(method, path, body)
            except urllib.error.HTTPError as error:
                if failures and error.code == HTTPStatus.CONFLICT:
                    return None
                failures += 1
                if error.code != HTTPStatus.INTERNAL_SERVER_ERROR or failures == MOST_FAILURES:
                    raise
                error.close()
                time.sleep(0.3)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def trigger(self, dag: str, run_id: str, conf: Mapping[str, Any]) -> None:
        """Start a DAG run."""
        run = {"dag_run_id": run_id, "logical_date": None, "conf": conf}
        self.call("POST", f"/api/v2/dags/{dag}/dagRuns", run)

    def ready(self) -> None:
        def log_in() -> bool:
            try:
                self._token = self.call("GET", "/auth/token")["access_token"]
            except (urllib.error.URLError, OSError):
                return False
            return True

        eventually(log_in, "the API server answers", poll_seconds=0.2)

    def output(self) -> str:
        return "\n".join(f"== {log.name}\n{log.read_text()[-3000:]}" for log in sorted(self.folder.glob("*.log")))


class Stream:
    """One DAG run of a stream, with a home of its own.

    :param first: the first driver's plan, see ``contract_driver.py``
    :param then: the plan of all later ones
    """

    def __init__(
        self, parts: Parts, dag: str, home: Path, *, first: str, then: str = "exit=1", until: str = "available"
    ) -> None:
        self.parts, self.dag, self.home = parts, dag, Home(home)
        self.run_id = f"{home.name}-{time.time_ns()}"
        conf = {"home": str(home), "first": first, "then": then, "until": until}
        parts.trigger(dag, self.run_id, conf)
        self._path = f"/api/v2/dags/{dag}/dagRuns/{self.run_id}/taskInstances"

    def task(self) -> dict[str, Any]:
        columns = ("state", "try_number", "start_date", "pid")
        query = f"SELECT {', '.join(columns)} FROM task_instance WHERE run_id = ?"
        return dict(zip(columns, self.parts.airflow.query(query, self.run_id)[0], strict=True))

    def wait_for(self, *states: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            task = self.task()
            return task if task["state"] in states else None

        try:
            instance = eventually(look, f"the task is {' or '.join(states)}", poll_seconds=0.2)
        except AssertionError as error:
            account = f"{self.task()}\n{self.log()}\n{self.parts.output()}"
            raise AssertionError(f"{error}\n{account}") from error
        return instance

    def wait_for_next_try(self) -> None:
        """Wait for the second try of a task whose worker is gone: its last heartbeat is made one of long ago."""
        age = "UPDATE task_instance SET last_heartbeat_at = '2000-01-01' WHERE run_id = ? AND try_number = 1"

        def look() -> bool:
            self.parts.airflow.change(age, self.run_id)
            return bool(self.task()["try_number"] == 2)

        eventually(look, self.parts.output, poll_seconds=1.0)

    def wait_until_over(self) -> None:
        """Wait for the run's end; Airflow may end a run whose last task is cleared at that moment without this task."""
        query = "SELECT 1 FROM dag_run WHERE run_id = ? AND state IN ('success', 'failed')"
        eventually(lambda: self.parts.airflow.query(query, self.run_id), "the run is over", poll_seconds=0.2)

    def wait_for_watch(self) -> None:
        """Wait until somebody would notice a user's hand: the worker's task runs, or the triggerer's trigger does."""
        if self.dag != "deferred":
            self.wait_for("running")
            return
        self.wait_for("deferred")
        eventually(lambda: any(".trigger." in log.name for log in self._logs()), "the trigger runs")

    def _logs(self) -> list[Path]:
        return sorted((self.parts.airflow.home / "logs").rglob(f"run_id={self.run_id}/**/*.log"))

    def log(self) -> str:
        logs = self._logs()
        return "\n".join(f"== {log.name}\n{log.read_text()[-4000:]}" for log in logs)

    def result(self) -> dict[str, Any]:
        entry = self.parts.call("GET", f"{self._path}/stream/xcomEntries/return_value")
        value = entry["value"]
        return dict(json.loads(value) if isinstance(value, str) else value)

    def committed(self) -> str:
        """Wait for the driver's first commit; returns its start token."""

        def token() -> str | None:
            started = self.notes("started")
            committing = self.home.status.exists() and '"commit": 0' not in self.home.status.read_text()
            return str(started[-1]["token"]) if started and committing else None

        return eventually(token, "a commit")

    def notes(self, event: str) -> list[dict[str, Any]]:
        path = self.home.control / "notes.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if line["event"] == event]

    def mark(self, state: str) -> None:
        self.parts.call("PATCH", f"{self._path}/stream", {"new_state": state})

    def clear(self) -> None:
        body = {"dry_run": False, "dag_run_id": self.run_id, "task_ids": ["stream"], "only_failed": False}
        self.parts.call("POST", f"/api/v2/dags/{self.dag}/clearTaskInstances", body)

    def stop(self) -> None:
        """Stop the driver as anybody may, which is the end of a stream that runs for ever."""
        held = lease.read(self.home.lease)
        assert held is not None
        requests.request_stop(self.home, held.token, reason="the test is over")

    def is_gone(self, token: str) -> bool:
        from airflow_provider_exactlyonce.control import processes

        return not processes.members(token)
