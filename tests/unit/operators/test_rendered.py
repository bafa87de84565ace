"""What a template renders to is judged as a literal is: named, and not retried when a retry would be given the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from airflow.sdk import BaseOperator, BaseSensorOperator
from airflow.sdk.definitions.retry_policy import RetryAction
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException, AirflowSkipException, TaskDeferred

from airflow_provider_exactlyonce.control import launching, upgrade_plan
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.hooks.arguments import wish
from airflow_provider_exactlyonce.operators.audit import AuditPipelineOperator
from airflow_provider_exactlyonce.operators.backfill import BackfillPipelineOperator
from airflow_provider_exactlyonce.operators.retry import StreamingRetryPolicy
from airflow_provider_exactlyonce.operators.savepoint import CleanUpSavepointsOperator
from airflow_provider_exactlyonce.operators.streaming import StreamingPipelineOperator
from airflow_provider_exactlyonce.operators.upgrade import UpgradePipelineOperator
from airflow_provider_exactlyonce.sensors.commit_gate import CommitGateSensor
from airflow_provider_exactlyonce.sensors.kafka_transactions import KafkaTransactionsSensor
from airflow_provider_exactlyonce.sensors.pipeline_state import PipelineStateSensor
from tests.task_state import Store
from tests.unit.test_conventions import CLASSES, parameters


class NoClusterError(ExactlyOnceError):
    """What comes after the arguments were read."""


class TaskInstance(SimpleNamespace):
    def xcom_push(self, key: str, value: Any) -> None:
        json.dumps(value)


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a pipeline with a home and a job, and neither a cluster nor a driver."""

    def nobody(*_: Any, **__: Any) -> NoReturn:
        raise NoClusterError("the arguments are read")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    for name, extra in (("DEFAULT", {"bootstrap.servers": "broker:9092"}), ("EMPTY", {})):
        monkeypatch.setenv(f"AIRFLOW_CONN_KAFKA_{name}", json.dumps({"conn_type": "kafka", "extra": extra}))
    monkeypatch.setattr("airflow.providers.apache.kafka.hooks.base.KafkaBaseHook._maybe_add_msk_iam_oauth", nobody)
    monkeypatch.setattr(launching, "start", nobody)
    Home(tmp_path / "home").create("shop")
    (tmp_path / "job.py").write_text("new")
    return tmp_path


def task_of(kind: type[BaseOperator], world: Path, **given: Any) -> Any:
    home, job = str(world / "home"), str(world / "job.py")
    needed: Mapping[type[BaseOperator], Mapping[str, Any]] = {
        AuditPipelineOperator: {"pipeline": "shop"},
        BackfillPipelineOperator: {"checkpoint": home, "application": job},
        CommitGateSensor: {"pipeline": "shop"},
        KafkaTransactionsSensor: {"topics": "shop.events"},
        StreamingPipelineOperator: {"checkpoint": home, "application": job},
        UpgradePipelineOperator: {"checkpoint": home, "application": job},
    }
    waits = {"deferrable": True} if issubclass(kind, BaseSensorOperator) else {}
    return kind(**{"task_id": "t", **waits, **needed.get(kind, {"checkpoint": home}), **given})


def failure(task: Any) -> Exception | None:
    """Return what the task fails with; None when it is done, or waits in the triggerer."""
    ti = TaskInstance(dag_id="d", run_id="r", task_id="t", map_index=-1)
    start, end = "2026-01-01T10:00:00+00:00", "2026-01-01T11:00:00+00:00"
    context = {"ti": ti, "data_interval_start": start, "data_interval_end": end, "task_state_store": Store()}
    try:
        task.execute(context)
    except TaskDeferred:
        return None
    except Exception as error:
        return error
    return None


def with_target(kind: type[BaseOperator]) -> dict[str, Any]:
    return {"commit": 3} if kind is CommitGateSensor else {}


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in CLASSES for name in kind.template_fields],
    ids=lambda given: getattr(given, "__name__", given),
)
def test_whatever_a_template_gives_is_used_or_is_an_error_of_ours(
    kind: type[BaseOperator], name: str, world: Path
) -> None:
    """Which says what is wrong, and whether a retry helps; any other error is retried, and says neither."""
    for value in ("", "None", None, 3):
        task = task_of(kind, world, **with_target(kind))
        setattr(task, name, value)
        error = failure(task)
        ours = ExactlyOnceError | AirflowFailException | AirflowNotFoundException
        assert error is None or isinstance(error, ours), f"{value!r}: {error!r}"
    assert not (world / "control").exists(), "the working directory is no home"


@pytest.mark.parametrize(
    ("kind", "name", "value", "said"),
    [
        (AuditPipelineOperator, "from_commit", "None", "from_commit='None'"),
        (AuditPipelineOperator, "patience", "soon", "patience='soon'"),
        (CleanUpSavepointsOperator, "count", "", "count=''"),
        (BackfillPipelineOperator, "commits", ("1", "many"), "commits=('1', 'many')"),
        (BackfillPipelineOperator, "commits", (1, 2, 3), "commits=(1, 2, 3)"),
        (StreamingPipelineOperator, "checkpoint", "", "checkpoint=''"),
        (StreamingPipelineOperator, "source_conn_ids", "kafka_b", "source_conn_ids=<str>: give a list"),
        (StreamingPipelineOperator, "postgres_conn_ids", "db", "postgres_conn_ids=<str>: give a list"),
        (StreamingPipelineOperator, "application_args", "--key hush", "application_args=<str>: give a list"),
        (StreamingPipelineOperator, "conf", "{'key': 'hush'}", "conf=<str>: give a dictionary"),
        (UpgradePipelineOperator, "env_vars", ["KEY=hush"], "env_vars=<list>: give a dictionary"),
        (UpgradePipelineOperator, "allow", {"missing": "some"}, "allow['missing']='some'"),
        (CommitGateSensor, "commit", "None", "commit='None'"),
        (CommitGateSensor, "commit", "", "commit=''"),
        (KafkaTransactionsSensor, "topics", None, "topics=None"),
        (PipelineStateSensor, "states", "", "states=''"),
    ],
)
def test_what_can_not_be_used_is_named_and_not_retried(
    kind: type[BaseOperator], name: str, value: object, said: str, world: Path
) -> None:
    task = task_of(kind, world, **with_target(kind))
    setattr(task, name, value)
    error = failure(task)
    assert said in str(error)
    assert "hush" not in str(error)
    policy = StreamingRetryPolicy()
    assert isinstance(error, AirflowFailException) or policy.evaluate(error, 1, 3).action is RetryAction.FAIL  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["source_conn_ids", "postgres_conn_ids", "store_conn_ids", "application_args", "conf"])
def test_one_text_instead_of_a_list_is_shown_when_the_dag_is_parsed(name: str, world: Path) -> None:
    with pytest.raises(ValueError, match=rf"^t: {name}=<str>: give a"):
        task_of(StreamingPipelineOperator, world, **{name: "db"})
    task_of(StreamingPipelineOperator, world, **{name: "{{ params.given }}"})


def same(row: dict[str, Any]) -> dict[str, Any]:
    return row


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_no_templated_field_has_what_airflow_would_call(kind: type[BaseOperator], world: Path) -> None:
    """Airflow calls a function in a templated field with its context."""
    functions = {name: same for name, of in parameters(kind).items() if "Callable" in str(of.annotation)}
    task = task_of(kind, world, **with_target(kind), **functions)
    task.render_template_fields({})
    for name in functions:
        assert getattr(task, name) == f"{Path(__file__).resolve()}:same"
    assert [name for name in kind.template_fields if callable(getattr(task, name))] == []


def test_a_function_that_compares_reaches_the_plan(world: Path) -> None:
    task = task_of(UpgradePipelineOperator, world, compare=same)
    task.render_template_fields({})
    assert isinstance(failure(task), NoClusterError)
    plan = upgrade_plan.read(Home(world / "home"))
    assert plan is not None
    assert (plan.options.compare, plan.options.function) == ((), f"{Path(__file__).resolve()}:same")
    with pytest.raises(ValueError, match=r"t: compare=.*: a function of a module"):
        task_of(UpgradePipelineOperator, world, compare=lambda row: row)


def test_an_upgrade_that_can_not_begin_leaves_no_plan(world: Path) -> None:
    task = task_of(UpgradePipelineOperator, world, conf="{{ params.conf }}")
    assert isinstance(failure(task), RefusedError)
    assert upgrade_plan.read(Home(world / "home")) is None, "which would keep another upgrade out"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (True, True),
        ("True", True),
        (False, False),
        ("False", False),
        ("", False),
        (None, False),
        ("nightly", "nightly"),
    ],
)
def test_a_template_can_want_no_savepoint(given: Any, wanted: object) -> None:
    assert wish(given) is wanted or (isinstance(wanted, str) and wish(given) == wanted)


def test_numbers_of_allowed_differences_may_come_from_templates(world: Path) -> None:
    task = task_of(UpgradePipelineOperator, world, allow={"missing": "{{ params.missing }}"})
    task.allow = {"missing": "5", "extra": "None", "changed": 0}
    assert isinstance(failure(task), NoClusterError)
    plan = upgrade_plan.read(Home(world / "home"))
    assert plan is not None
    assert plan.options.allow == {"missing": 5, "extra": None, "changed": 0}


def test_what_a_driver_is_given_is_text(world: Path) -> None:
    task = task_of(StreamingPipelineOperator, world, application_args=["--count", 3], env_vars={"COUNT": 3})
    settings = task.driver_settings("job.py", "--first")
    assert settings.application_args == ["--first", "--count", "3"]
    assert settings.env_vars == {"COUNT": "3"}


@pytest.mark.parametrize("deferrable", [True, False])
@pytest.mark.parametrize(("name", "value"), [("commit", "None"), ("kafka_conn_id", "kafka_empty")])
def test_a_sensor_that_may_fail_softly_skips_whatever_is_refused(
    deferrable: bool, name: str, value: str, world: Path
) -> None:
    for softly in ("soft_fail", "never_fail"):
        task = task_of(CommitGateSensor, world, commit=3, deferrable=deferrable, **{softly: True})
        setattr(task, name, value)
        error = failure(task)
        assert isinstance(error, AirflowSkipException)
        assert value in f"{error} {error.__cause__}"
