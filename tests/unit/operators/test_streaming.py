"""The operator with a driver that is a real process and speaks the control contract; only Spark is left out."""

from __future__ import annotations

import json
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import status as statuses
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.operators.streaming import RestartStrategy, StreamingPipelineOperator

DRIVER = Path(__file__).parents[1] / "control" / "contract_driver.py"
PASSWORD = "kafka-password-4711"

#: Stands for Spark's launcher: notes how it was called and becomes the application.
LAUNCHER = """#!{python}
import json, os, sys
with open({calls!r}, "a") as file:
    file.write(json.dumps({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}) + "\\n")
at = sys.argv.index({driver!r})
os.execv(sys.executable, [sys.executable, *sys.argv[at:]])
"""


class TaskInstance:
    """What the operator uses of Airflow's."""

    dag_id, task_id, run_id, map_index = "shop", "stream", "run1", -1

    def __init__(self) -> None:
        self.pushed: dict[str, str] = {}

    def xcom_push(self, key: str, value: str) -> None:
        self.pushed[key] = value


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    """Put the launcher on the path; returns how it was called."""
    noted = tmp_path / "calls.jsonl"
    program = tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text(LAUNCHER.format(python=sys.executable, calls=str(noted), driver=str(DRIVER)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    extra = {"bootstrap.servers": "broker:9092", "sasl.password": PASSWORD}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
    return lambda: [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else []


def operator(tmp_path: Path, *plans: str, **options: Any) -> StreamingPipelineOperator:
    defaults = {
        "application": str(DRIVER),
        "checkpoint": str(tmp_path / "home"),
        "jars": "connector.jar",
        "restart_strategy": RestartStrategy.fixed_delay(attempts=2, delay=timedelta(0)),
        "poll_interval": 0.05,
        "stop_timeout": 5,
        "application_args": list(plans),
    }
    return StreamingPipelineOperator(task_id="stream", **{**defaults, **options})


def execute(task: StreamingPipelineOperator, ti: TaskInstance | None = None) -> dict[str, Any]:
    return task.execute({"ti": ti or TaskInstance()})  # type: ignore[typeddict-item]


@contextmanager
def alarm(seconds: float, action: Callable[[], object]) -> Iterator[None]:
    """Run an action in a signal handler of the main thread, as Airflow runs ``on_kill``."""
    previous = signal.signal(signal.SIGALRM, lambda *_: action())
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.usefixtures("calls")
def test_it_returns_where_the_pipeline_is_over_all_restarts(tmp_path: Path) -> None:
    task = operator(tmp_path, "take-lease commit commit sleep=0.2 die", "take-lease commit end=finished")
    assert execute(task) == {
        "pipeline": "shop",
        "run": 2,
        "lineage": None,
        "commit": 3,
        "batch": 0,
        "rows": 300,
        "watermark": None,
        "restarts": 1,
    }


@pytest.mark.usefixtures("calls")
def test_links_are_pushed_while_the_driver_runs_and_again_at_the_end(tmp_path: Path) -> None:
    ti, seen = TaskInstance(), {}
    task = operator(tmp_path, "take-lease commit sleep=1 end=finished")
    with alarm(0.8, lambda: seen.update(ti.pushed)):
        execute(task, ti)
    assert seen == {
        "_link_SparkUILink": "http://127.0.0.1:4040",
        "_link_SparkApplicationLink": "http://127.0.0.1:4040/StreamingQuery/#local-1",
    }
    at_the_end = {link.xcom_key: link.get_link(task, ti_key=ti) for link in task.operator_extra_links}  # type: ignore[arg-type]
    assert at_the_end == seen


def test_the_driver_gets_home_settings_and_interpreter_and_the_secret_by_environment_only(
    tmp_path: Path, calls: Callable[[], list[dict[str, Any]]], caplog: pytest.LogCaptureFixture
) -> None:
    task = operator(
        tmp_path, "take-lease end=finished", conf={"spark.sql.shuffle.partitions": "4"}, env_vars={"EXTRA": "yes"}
    )
    with caplog.at_level("INFO"):
        execute(task)
    [call] = calls()
    arguments, environment = call["arguments"], call["environment"]
    at = arguments.index(str(DRIVER))
    assert arguments[at + 1 : at + 5] == ["--home", str(tmp_path / "home"), "--until", "available"]
    assert {"spark.task.maxFailures=1", "spark.sql.shuffle.partitions=4"} <= set(arguments)
    assert json.loads(environment["EXACTLYONCE_KAFKA"])["sasl.password"] == PASSWORD
    assert environment["PYSPARK_PYTHON"] == sys.executable
    assert environment["EXTRA"] == "yes"
    assert PASSWORD not in " ".join(arguments)
    assert PASSWORD not in caplog.text
    files = [file for file in (tmp_path / "home").rglob("*") if file.is_file()]
    assert files
    assert not [file for file in files if PASSWORD in file.read_text()]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files if file.suffix == ".log"} == {0o600}


@pytest.mark.usefixtures("calls")
def test_a_refusal_fails_the_task_without_retries_and_the_drivers_words_come_first(tmp_path: Path) -> None:
    chatter = "print=26/11/21_11:14:51_INFO_SparkEnv:_up"
    plan = f"{chatter} print=connecting take-lease fail=RefusedError:refuse:64:the_ledger_is_foreign"
    with pytest.raises(AirflowFailException) as caught:
        execute(operator(tmp_path, plan))
    first, heading, *rest = str(caught.value).splitlines()
    assert first == "RefusedError: the ledger is foreign"
    assert heading.endswith("driver-1.log, without Spark's INFO:")
    assert rest == ["connecting"]


@pytest.mark.usefixtures("calls")
def test_a_lost_driver_fails_the_task_so_that_retries_may_follow(tmp_path: Path) -> None:
    with pytest.raises(AirflowException, match="killed by signal 9") as caught:
        execute(operator(tmp_path, "take-lease die", restart_strategy=RestartStrategy.none()))
    assert not isinstance(caught.value, AirflowFailException)


@pytest.mark.usefixtures("calls")
def test_a_killed_task_stops_its_driver_and_is_no_success(tmp_path: Path) -> None:
    task = operator(tmp_path, "take-lease commit until-stop")
    began = time.monotonic()
    with alarm(1.0, task.on_kill), pytest.raises(AirflowException, match="stopped at commit 1: the task was killed"):
        execute(task)
    assert time.monotonic() - began < 5
    status = statuses.read(Home(tmp_path / "home").status)
    assert status is not None
    assert status.state is statuses.DriverState.STOPPED


def test_a_task_that_is_killed_before_its_driver_starts_starts_none(
    tmp_path: Path, calls: Callable[[], list[dict[str, Any]]]
) -> None:
    task = operator(tmp_path, "take-lease end=finished")
    task.on_kill()
    with pytest.raises(AirflowException, match="before a driver was started"):
        execute(task)
    assert calls() == []
    assert intents.read(Home(tmp_path / "home").intent) is None


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"until": "tomorrow"}, "until='tomorrow': one of available, forever"),
        ({"application": "jobs/none.py"}, r"application='jobs/none\.py' is not there, looked up from"),
        ({"checkpoint": "s3://bucket/home"}, "homes are local paths"),
        ({"conf": {"spark.task.maxFailures": 4}}, r"spark\.task\.maxFailures is '4'; it must be '1'"),
    ],
)
def test_what_can_not_be_is_refused_before_anything_starts(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(AirflowFailException, match=message):
        execute(operator(tmp_path, "exit=1", **options))
    assert not (tmp_path / "home").exists()


def test_a_relative_application_lies_beside_the_file_of_its_dag(
    tmp_path: Path, calls: Callable[[], list[dict[str, Any]]]
) -> None:
    with DAG("shop") as dag:
        task = operator(tmp_path, "take-lease end=finished", application="../control/contract_driver.py")
    assert dag.fileloc == __file__
    execute(task)
    assert str(DRIVER) in calls()[0]["arguments"]


def test_all_that_depends_on_the_run_can_be_templated(tmp_path: Path) -> None:
    task = operator(tmp_path)
    assert {"application", "checkpoint", "conn_id", "kafka_conn_id", "until", "conf", "env_vars"} <= set(
        task.template_fields
    )
    assert all(hasattr(task, name) for name in task.template_fields)
    assert not task.template_ext, "a job's path ends in .py and is no template"


def test_the_default_restarts_three_times_after_ten_seconds_each() -> None:
    task = StreamingPipelineOperator(task_id="stream", application="a.py", checkpoint="/h")
    assert task.restart_strategy == RestartStrategy.fixed_delay(attempts=3, delay=timedelta(seconds=10))
