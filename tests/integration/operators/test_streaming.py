"""The operator with a driver that is a real process and speaks the control contract; only Spark is left out."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.definitions.retry_policy import RetryAction
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import json_store, requests, standbys
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control import status as statuses
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.status import DriverState
from airflow_provider_exactlyonce.exceptions import (
    BadRecordError,
    DriverFailedError,
    RefusedError,
    StopRequestedError,
    WorkerShutdownError,
)
from airflow_provider_exactlyonce.operators.backfill import BackfillPipelineOperator
from airflow_provider_exactlyonce.operators.retry import StreamingRetryPolicy
from airflow_provider_exactlyonce.operators.streaming import Commits, RestartStrategy, StreamingPipelineOperator
from tests.integration.control.alarms import after, alarm
from tests.integration.control.contract_driver import let_go
from tests.task_state import TaskInstance
from tests.waiting import HANG_SECONDS

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
        "stop_timeout": HANG_SECONDS,
        "application_args": list(plans),
    }
    return StreamingPipelineOperator(task_id="stream", **{**defaults, **options})


def execute(task: StreamingPipelineOperator, ti: TaskInstance | None = None, clears: int = 0) -> dict[str, Any]:
    context: Any = {"ti": ti or TaskInstance(), "dag_run": SimpleNamespace(clear_number=clears)}
    return task.execute(context)


#: Of a second driver with one commit, after a first with two.
AFTER_A_RESTART = {
    "pipeline": "shop",
    "run": 2,
    "lineage": None,
    "commit": 3,
    "batch": 0,
    "rows": 300,
    "rows_by_sink": {"Kafka": 300},
    "records": 390,
    "late_rows": 6,
    "watermark": None,
    "restarts": 1,
}


def last_state(tmp_path: Path) -> DriverState:
    status = statuses.read(Home(tmp_path / "home").status)
    assert status is not None
    return status.state


def committed(tmp_path: Path) -> Callable[[], bool]:
    """Return the condition that the driver has committed."""

    def condition() -> bool:
        status = statuses.read(Home(tmp_path / "home").status)
        return status is not None and status.commit > 0

    return condition


@pytest.mark.usefixtures("calls")
def test_it_returns_where_the_pipeline_is_over_all_restarts(tmp_path: Path) -> None:
    task = operator(tmp_path, "take-lease commit commit sleep=0.2 die", "take-lease commit end=finished")
    assert execute(task) == AFTER_A_RESTART


@pytest.mark.usefixtures("calls")
def test_rows_by_sink_are_those_of_all_drivers_though_the_last_has_committed_nothing(tmp_path: Path) -> None:
    task = operator(tmp_path, "take-lease commit commit sleep=0.2 die", "take-lease end=finished")
    result = execute(task)
    assert (result["rows"], result["rows_by_sink"]) == (200, {"Kafka": 200})


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("document", ["task-*.json", "restarts.json"])
def test_a_home_that_does_not_answer_once_the_work_is_done_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, document: str
) -> None:
    read, write, unanswered = json_store.load, json_store.write, list[Path]()

    def answer(path: Path) -> None:
        status = statuses.read(Home(tmp_path / "home").status) if path.match(document) else None
        if status is not None and status.state is DriverState.FINISHED and len(unanswered) < 2:
            unanswered.append(path)
            raise TimeoutError("the bucket hangs")

    def load(path: Path, *how: Any, **more: Any) -> Any:
        answer(path)
        return read(path, *how, **more)

    def write_if_answered(path: Path, *how: Any, **more: Any) -> None:
        answer(path)
        write(path, *how, **more)

    monkeypatch.setattr(json_store, "load", load)
    monkeypatch.setattr(json_store, "write", write_if_answered)
    result = execute(operator(tmp_path, "take-lease commit commit sleep=0.2 die", "take-lease commit end=finished"))
    assert (result, len(unanswered)) == (AFTER_A_RESTART, 2)


@pytest.mark.usefixtures("calls")
def test_links_are_pushed_while_the_driver_runs_and_again_at_the_end(tmp_path: Path) -> None:
    ti, seen, known = TaskInstance(), dict[str, Any](), tmp_path / "known"
    task = operator(tmp_path, f"take-lease commit wait-for={known} end=finished")

    def all_are_pushed() -> bool:
        return len(ti.pushed) == 4 and ti.pushed["pipeline_status"]["state"] == "running"

    def look() -> None:
        seen.update(ti.pushed)
        known.touch()

    with alarm(all_are_pushed, look):
        execute(task, ti)
    pushed = seen.pop("pipeline_status")
    assert (pushed["pipeline"], pushed["state"]) == ("shop", "running")
    assert seen == {
        "_link_PipelineStatusLink": "http://localhost:8080/dags/shop/runs/run1/tasks/stream/xcom",
        "_link_SparkUILink": "http://127.0.0.1:4040",
        "_link_SparkApplicationLink": "http://127.0.0.1:4040/StreamingQuery/#local-1",
    }
    at_the_end = {link.xcom_key: link.get_link(task, ti_key=ti) for link in task.operator_extra_links}  # type: ignore[arg-type]
    assert at_the_end == seen


def test_the_driver_gets_home_settings_and_interpreter_and_the_secret_by_environment_only(
    tmp_path: Path,
    calls: Callable[[], list[dict[str, Any]]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps({"conn_type": "postgres", "host": "db", "password": PASSWORD}))
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "aws", "login": "key", "password": PASSWORD}))
    catalog = {"conn_type": "iceberg", "host": "https://lake/api/", "login": "id", "password": PASSWORD}
    monkeypatch.setenv("AIRFLOW_CONN_CATALOG", json.dumps({**catalog, "extra": {"warehouse": "shop"}}))
    orders = {"bootstrap.servers": "orders:9092", "sasl.password": PASSWORD}
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS", json.dumps({"conn_type": "kafka", "extra": {**orders, "group.id": "g"}}))
    task = operator(
        tmp_path,
        "take-lease end=finished",
        conf={"spark.sql.shuffle.partitions": "4"},
        env_vars={"EXTRA": "yes"},
        source_conn_ids=["orders"],
        postgres_conn_ids=["db"],
        store_conn_ids=["lake", "catalog"],
    )
    with caplog.at_level("INFO"):
        execute(task)
    [call] = calls()
    arguments, environment = call["arguments"], call["environment"]
    at = arguments.index(str(DRIVER))
    assert arguments[at + 1 : at + 5] == ["--home", str(tmp_path / "home"), "--until", "available"]
    assert {"spark.task.maxFailures=1", "spark.sql.shuffle.partitions=4"} <= set(arguments)
    assert json.loads(environment["EXACTLYONCE_KAFKA"])["sasl.password"] == PASSWORD
    assert json.loads(environment["EXACTLYONCE_SOURCES"]) == {"orders": orders}
    assert json.loads(environment["EXACTLYONCE_POSTGRES"]) == {"db": {"host": "db", "password": PASSWORD}}
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": PASSWORD}
    rest = {"type": "rest", "uri": "https://lake/api", "credential": f"id:{PASSWORD}", "warehouse": "shop"}
    assert json.loads(environment["EXACTLYONCE_STORES"]) == {"lake": keys, "catalog": rest}
    assert environment["PYSPARK_PYTHON"] == sys.executable
    assert environment["EXTRA"] == "yes"
    assert PASSWORD not in " ".join(arguments)
    assert PASSWORD not in caplog.text
    files = [file for file in (tmp_path / "home").rglob("*") if file.is_file()]
    assert files
    assert not [file for file in files if PASSWORD in file.read_text()]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files if file.suffix == ".log"} == {0o600}


@pytest.mark.usefixtures("calls")
def test_the_drivers_own_error_arrives_with_its_words_first_and_the_end_of_its_output(tmp_path: Path) -> None:
    chatter = "print=26/11/21_11:14:51_INFO_SparkEnv:_up"
    plan = f"{chatter} print=connecting take-lease fail=BadRecordError:fix_data:67:not_JSON"
    with pytest.raises(BadRecordError) as caught:
        execute(operator(tmp_path, plan))
    first, heading, *rest = str(caught.value).splitlines()
    assert caught.value.args == (first,) == ("BadRecordError: not JSON",)
    assert heading.endswith("driver-1.log, without Spark's INFO:")
    assert rest == ["connecting"]
    assert caught.value.log_tail.splitlines() == [heading, *rest]


@pytest.mark.usefixtures("calls")
def test_a_user_who_marks_or_clears_the_task_stops_its_driver(tmp_path: Path) -> None:
    task = operator(tmp_path, "take-lease commit until-stop")
    killed = "stopped at commit 1: the task was killed"
    with alarm(committed(tmp_path), task.on_kill), pytest.raises(StopRequestedError, match=killed):
        execute(task, TaskInstance(state="failed"))
    assert last_state(tmp_path) is DriverState.STOPPED


@pytest.mark.usefixtures("calls")
def test_a_user_may_want_the_driver_to_go_on_without_the_task(tmp_path: Path) -> None:
    task = operator(tmp_path, "take-lease commit go end=finished", stop_on_kill=False)
    with alarm(committed(tmp_path), task.on_kill), pytest.raises(StopRequestedError, match="its driver goes on"):
        execute(task, TaskInstance(state="restarting"))
    assert last_state(tmp_path) is DriverState.RUNNING
    home = Home(tmp_path / "home")
    with alarm(after(0.5), lambda: let_go(home)):
        assert execute(operator(tmp_path, "exit=1"))["commit"] == 1, "the next try finds it"


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "worker shuts down; the driver was stopped at commit 1"),
        ({"on_worker_shutdown": "stop_with_savepoint"}, "worker shuts down; the driver was stopped at commit 1"),
        ({"retries": 1}, "the driver goes on, and the next try takes it over"),
    ],
    ids=["kill", "stop_with_savepoint", "detach"],
)
def test_a_worker_that_shuts_down_does_with_the_driver_what_was_chosen(
    tmp_path: Path, options: dict[str, Any], message: str, calls: Callable[[], list[dict[str, Any]]]
) -> None:
    plans = ("take-lease commit until-stop", "take-lease commit end=finished")
    task = operator(tmp_path, *plans, **options)
    with alarm(committed(tmp_path), task.on_kill), pytest.raises(WorkerShutdownError, match=message) as caught:
        execute(task)
    assert StreamingRetryPolicy().evaluate(caught.value, 1, 1).action is RetryAction.RETRY
    home = Home(tmp_path / "home")
    detached = "retries" in options
    assert last_state(tmp_path) is (DriverState.RUNNING if detached else DriverState.STOPPED)
    asked = list(home.commands.glob("savepoint-*.json"))
    assert len(asked) == (options.get("on_worker_shutdown") == "stop_with_savepoint")
    if detached:
        held = leases.read(home.lease)
        assert held is not None
        requests.request_stop(home, held.token, reason="test")
        with pytest.raises(StopRequestedError, match="somebody stopped the driver"):
            execute(operator(tmp_path, *plans))
    else:
        assert execute(operator(tmp_path, *plans))["commit"] == 2, "the next try begins anew"
    assert len(calls()) == (1 if detached else 2)


@pytest.mark.usefixtures("calls")
def test_a_worker_that_shuts_down_leaves_a_driver_of_another_task_as_it_is(tmp_path: Path) -> None:
    home, plan = Home(tmp_path / "home"), "take-lease commit until-stop"
    first = operator(tmp_path, plan, retries=1)
    with alarm(committed(tmp_path), first.on_kill), pytest.raises(WorkerShutdownError, match="the driver goes on"):
        execute(first)
    waiting, ti = operator(tmp_path, plan, on_worker_shutdown="stop_with_savepoint"), TaskInstance(run_id="run2")
    with alarm(lambda: "pipeline_status" in ti.pushed, waiting.on_kill), pytest.raises(WorkerShutdownError):
        execute(waiting, ti)
    held = leases.read(home.lease)
    assert held is not None
    assert requests.savepoint_requests(home, held.token) == []
    assert requests.stop_requested(home, held.token) is None
    assert last_state(tmp_path) is DriverState.RUNNING
    requests.request_stop(home, held.token, reason="test")
    with pytest.raises(StopRequestedError, match="somebody stopped the driver"):
        execute(operator(tmp_path, plan))


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    ("try_number", "max_tries"), [(2, 1), (5, 4)], ids=["the last of its retries", "the last one after clears"]
)
def test_no_driver_is_left_alone_by_the_last_try(
    tmp_path: Path, try_number: int, max_tries: int, capsys: pytest.CaptureFixture[str]
) -> None:
    task = operator(tmp_path, "take-lease commit until-stop", retries=1)
    stopped = "worker shuts down; the driver was stopped at commit 1"
    with alarm(committed(tmp_path), task.on_kill), pytest.raises(WorkerShutdownError, match=stopped):
        execute(task, TaskInstance(try_number=try_number, max_tries=max_tries))
    assert last_state(tmp_path) is DriverState.STOPPED
    assert f"this is the last try, {try_number} of {max_tries + 1}" in capsys.readouterr().out


@pytest.mark.usefixtures("calls")
def test_a_driver_that_would_end_with_its_tasks_pod_is_stopped_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")
    plans = ("take-lease commit until-stop", "take-lease commit end=finished")
    task = operator(tmp_path, *plans, retries=1)
    stopped = "worker shuts down; the driver was stopped at commit 1"
    with alarm(committed(tmp_path), task.on_kill), pytest.raises(WorkerShutdownError, match=stopped):
        execute(task)
    assert last_state(tmp_path) is DriverState.STOPPED
    assert "its driver would end with it: it is stopped" in capsys.readouterr().out
    assert execute(operator(tmp_path, *plans))["commit"] == 2, "the next try begins anew"


@pytest.mark.usefixtures("calls")
def test_a_worker_shuts_down_when_airflow_does_not_answer(tmp_path: Path) -> None:
    task, ti = operator(tmp_path, "take-lease commit until-stop"), TaskInstance()
    ti.get_task_states = None  # type: ignore[method-assign, assignment]
    with alarm(committed(tmp_path), task.on_kill), pytest.raises(WorkerShutdownError):
        execute(task, ti)


def test_a_driver_is_not_left_alone_without_a_next_try() -> None:
    with pytest.raises(ValueError, match="needs retries of at least 1"):
        StreamingPipelineOperator(task_id="stream", application="a", checkpoint="/h", on_worker_shutdown="detach")
    with pytest.raises(ValueError, match="on_worker_shutdown='leave': one of detach, stop_with_savepoint, kill"):
        StreamingPipelineOperator(task_id="stream", application="a", checkpoint="/h", on_worker_shutdown="leave")
    with pytest.raises(ValueError, match="if_running='wait': one of adopt, fail, replace"):
        StreamingPipelineOperator(task_id="stream", application="a", checkpoint="/h", if_running="wait")


def test_a_standby_is_the_driver_of_the_restart(tmp_path: Path, calls: Callable[[], list[dict[str, Any]]]) -> None:
    plans = ("take-lease commit go die", "take-lease commit end=finished")
    home = Home(tmp_path / "home")
    with alarm(lambda: standbys.waiting(home), lambda: let_go(home)):
        result = execute(operator(tmp_path, *plans, standby="warm"))
    assert (result["run"], result["commit"], result["restarts"]) == (2, 2, 1)
    driver, standby, *_ = calls()
    assert standby["arguments"] == [*driver["arguments"], "--standby", "warm"]
    status = statuses.read(home.status)
    assert status is not None
    assert status.token == standby["environment"]["EXACTLYONCE_TOKEN"]
    assert standbys.waiting(home) is None


@pytest.mark.usefixtures("calls")
def test_a_standby_is_refused_where_nobody_could_start_it_as_the_next_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="standby='cold': one of warm"):
        operator(tmp_path, standby="cold")
    with pytest.raises(ValueError, match="standby='warm' needs deferrable=False"):
        operator(tmp_path, standby="warm", deferrable=True)
    with pytest.raises(ValueError, match="a backfill has no standby"):
        BackfillPipelineOperator(task_id="stream", checkpoint="/h", standby="warm")
    with pytest.raises(RefusedError, match="once the task is done nobody starts the next one"):
        execute(operator(tmp_path, "take-lease end=finished", standby="warm", until="running"))
    extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": "http://127.0.0.1:1"}
    cluster = {"conn_type": "spark", "host": "yarn", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(cluster))
    with pytest.raises(RefusedError, match=r"connection spark_default has deploy-mode cluster \(yarn at "):
        execute(operator(tmp_path, "take-lease end=finished", standby="warm"))


def test_a_task_that_is_killed_before_its_driver_starts_starts_none(
    tmp_path: Path, calls: Callable[[], list[dict[str, Any]]]
) -> None:
    task = operator(tmp_path, "take-lease end=finished")
    task.on_kill()
    with pytest.raises(StopRequestedError, match="before a driver was started"):
        execute(task, TaskInstance(state="failed"))
    assert calls() == []
    assert intents.read(Home(tmp_path / "home").intent) is None


@pytest.mark.usefixtures("calls")
def test_an_execution_time_out_stops_the_driver(tmp_path: Path) -> None:
    task = operator(tmp_path, "take-lease commit until-stop")

    def over() -> None:  # as Airflow's own alarm does
        raise AirflowTaskTimeout

    with alarm(committed(tmp_path), over), pytest.raises(AirflowTaskTimeout):
        execute(task)
    assert last_state(tmp_path) is DriverState.STOPPED


@pytest.mark.usefixtures("calls")
def test_until_running_leaves_a_driver_that_runs(tmp_path: Path) -> None:
    plan = "take-lease commit until-stop"
    assert execute(operator(tmp_path, plan, until="running"))["run"] == 1
    again = execute(operator(tmp_path, "exit=1", until="running"), TaskInstance(run_id="run2"))
    assert again["run"] == 1, "the next run finds it running"
    forever = operator(tmp_path, "exit=1", until="forever")
    home = Home(tmp_path / "home")
    held = leases.read(home.lease)
    assert held is not None
    ti = TaskInstance(run_id="run2")
    with alarm(
        lambda: "_link_SparkUILink" in ti.pushed, lambda: requests.request_stop(home, held.token, reason="test")
    ):
        assert execute(forever, ti)["commit"] == 1


def test_a_target_goes_to_the_driver_under_a_name_that_all_tries_share(
    tmp_path: Path, calls: Callable[[], list[dict[str, Any]]]
) -> None:
    plans = ("take-lease exit=1", "take-lease commit end=finished")
    until = Commits("3")
    once = RestartStrategy.none()
    with pytest.raises(DriverFailedError):
        execute(operator(tmp_path, *plans, until=until, restart_strategy=once))
    execute(operator(tmp_path, *plans, until=until, restart_strategy=once))
    execute(operator(tmp_path, *plans, until=until), clears=1)
    first, second, third = ([*call["arguments"]] for call in calls())
    at = first.index("--until")
    assert first[at : at + 3] == ["--until", "commits:3", "--goal"]
    assert first[at + 3] == second[at + 3] != third[at + 3], "a task that is cleared after it was done counts anew"


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"application": "jobs/none.py"}, r"application='jobs/none\.py' is not there, looked up from"),
        ({"conf": {"spark.task.maxFailures": 4}}, r"spark\.task\.maxFailures is '4'; it must be '1'"),
    ],
)
def test_what_can_not_be_is_refused_before_anything_starts(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RefusedError, match=message):
        execute(operator(tmp_path, "exit=1", **options))
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"until": "tomorrow"}, "until='tomorrow': one of available, forever, commits:N"),
        ({"until": Commits(0)}, "until='commits:0': one of"),
        ({"checkpoint": "webhdfs://host/home"}, "webhdfs: is not read"),
    ],
)
def test_a_literal_that_can_not_be_is_refused_when_the_dag_is_parsed(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        operator(tmp_path, "exit=1", **options)


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
