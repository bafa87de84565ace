"""An Airflow for the session: a home of its own, a migrated SQLite database, the test's DAGs."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.streaming.harness import World
from tests.processes import started_with

ROOT = Path(__file__).parents[3]
#: SQLite refuses a write at once, whatever its time-out, if another process overtook what it has read.
MOST_TRIES = 5
#: SQLite gives a new trigger the id of one that was deleted, and a triggerer that still runs that one sends its event
#: to the new one's asset. No other database of Airflow's uses an id twice.
TRIGGERS_IDS_ARE_NEW = """
CREATE TABLE numbered (id INTEGER PRIMARY KEY AUTOINCREMENT);
DROP TABLE numbered;
PRAGMA writable_schema = ON;
UPDATE sqlite_master SET sql = replace(sql, 'PRIMARY KEY (id)', 'PRIMARY KEY (id AUTOINCREMENT)')
WHERE name = 'trigger';
PRAGMA writable_schema = RESET;
"""


@dataclass(frozen=True)
class Airflow:
    """An Airflow installation's home.

    :param environment: what its processes are started with
    """

    home: Path
    environment: Mapping[str, str]

    @property
    def database(self) -> Path:
        return self.home / "airflow.db"

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "airflow", *arguments]

    def run(self, command: list[str], environment: Mapping[str, str], timeout_seconds: float = 3000) -> None:
        """Run a program of Airflow to its end, again if its write was refused beside the scheduler's."""
        for _ in range(MOST_TRIES):
            code, output = self._run(command, environment, timeout_seconds)
            if code == 0:
                return
            if "database is locked" not in output:
                break
        raise AssertionError(f"{code}: {output[-6000:]}")

    def _run(
        self, command: list[str], environment: Mapping[str, str], timeout_seconds: float
    ) -> tuple[int | None, str]:
        output = self.home / "output.log"
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, env={**self.environment, **environment}, stdout=file, stderr=subprocess.STDOUT
            )
            try:
                code = process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                code = None
                process.kill()
                process.wait()
        return code, output.read_text()

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Look into the metadata database."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=30)) as database:
            return database.execute(sql, values).fetchall()

    def change(self, sql: str, *values: object) -> None:
        """Change the metadata database, as time would."""
        with closing(sqlite3.connect(self.database, timeout=30)) as database, database:
            database.execute(sql, values)

    def processes(self) -> list[int]:
        """Return its processes, whatever sessions they have made for themselves."""
        return started_with("AIRFLOW_HOME", self.home)

    def task_logs(self) -> str:
        """Return the end of each task's log, for a failed test's message."""
        logs = sorted((self.home / "logs").rglob("attempt=*.log"))
        return "\n\n".join(f"== {log.relative_to(self.home)}\n{log.read_text()[-3000:]}" for log in logs)


@pytest.fixture(scope="session")
def new_airflow(tmp_path_factory: pytest.TempPathFactory, kafka_config: Mapping[str, str]) -> Callable[[], Airflow]:
    """Return what makes an Airflow of its own: each begins with a copy of a database that was migrated once."""
    migrated = make_airflow(tmp_path_factory.mktemp("migrated"), kafka_config)
    migrated.run(migrated.command("db", "migrate"), {})
    with closing(sqlite3.connect(migrated.database)) as database:
        database.executescript(TRIGGERS_IDS_ARE_NEW)

    def new() -> Airflow:
        made = make_airflow(tmp_path_factory.mktemp("airflow"), kafka_config)
        shutil.copy(migrated.database, made.database)
        return made

    return new


@pytest.fixture(scope="session")
def airflow(new_airflow: Callable[[], Airflow]) -> Airflow:
    return new_airflow()


def make_airflow(home: Path, kafka_config: Mapping[str, str]) -> Airflow:
    """Return an Airflow whose database is not yet there."""
    settings = {
        "CORE__DAGS_FOLDER": str(Path(__file__).parent / "dags"),
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": "3",
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "LOGGING__LOGGING_LEVEL": "INFO",
        "SCHEDULER__ENABLE_HEALTH_CHECK": "False",
        "USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    environment = {
        **os.environ,
        **{f"AIRFLOW__{name}": value for name, value in settings.items()},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": dict(kafka_config)}),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": str(ROOT),
    }
    return Airflow(home, environment)


@pytest.fixture
def world(tmp_path: Path, kafka_config: Mapping[str, str], make_topic: Callable[..., str]) -> World:
    """Give a pipeline that has never run, with topics of its own."""
    source, sink = make_topic(partitions=3), make_topic(partitions=4)
    return World(config=kafka_config, pipeline=f"p-{source}", source=source, sink=sink, home=tmp_path / "home")


def result_of(world: World) -> dict[str, Any]:
    """Return a stream's result after three commits, of which the first driver was killed before it told the second."""
    commits, _ = world.ledger()
    told = (commits[0], commits[2])
    rows = sum(commit.rows for commit in told)
    return {
        "pipeline": world.pipeline,
        "run": 2,
        "lineage": commits[-1].lineage,
        "commit": 3,
        "batch": 2,
        "rows": rows,
        "rows_by_sink": {"Kafka": rows},
        "records": sum(commit.records or 0 for commit in told),
        "late_rows": 0,
        "watermark": None,
        "restarts": 1,
    }


def names_of(world: World, result: Path, **more: str) -> dict[str, str]:
    """Return the environment in which the test's DAGs are about this pipeline."""
    return {
        **world.names,
        "TEST_HOME": str(world.home),
        "TEST_RESULT": str(result),
        **more,
    }
