"""The links survive what Airflow does to a DAG between its file and its pages."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperatorLink
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_exactlyonce.control.status import DriverState, Status
from airflow_provider_exactlyonce.links import pipeline
from airflow_provider_exactlyonce.links.pipeline import Pushing
from airflow_provider_exactlyonce.links.pushed import xcom_page
from airflow_provider_exactlyonce.operators.savepoint import SavepointOperator, StopPipelineOperator
from airflow_provider_exactlyonce.operators.streaming import StreamingPipelineOperator

PAGE = "http://localhost:8080/dags/shop/runs/scheduled__2026-01-01T00%3A00%3A00%2B00%3A00/tasks/stream/xcom"


class Instance:
    """A task instance as the worker has it, which keeps what is pushed."""

    dag_id, run_id, task_id, map_index = "shop", "scheduled__2026-01-01T00:00:00+00:00", "stream", -1

    def __init__(self) -> None:
        self.made: list[tuple[str, Any]] = []
        self.is_away = False

    def xcom_push(self, key: str, value: Any) -> None:
        if self.is_away:
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR))
        self.made.append((key, value))

    def xcom_pull(self, key: str) -> Any:
        return dict(self.made).get(key)


def status(**changes: Any) -> Status:
    return Status(pipeline="shop", token="t", **{"state": DriverState.RUNNING, **changes})


def at_the_end(links: Collection[BaseOperatorLink], task: Any, instance: Instance) -> dict[str, str]:
    """Return what Airflow's own push after the task leaves."""
    return {link.name: link.get_link(task, ti_key=instance) for link in links}  # type: ignore[arg-type]


def stream() -> StreamingPipelineOperator:
    return StreamingPipelineOperator(task_id="stream", application="a.py", checkpoint="/h")


def test_the_status_link_is_there_at_the_submit_and_each_other_once_known_and_again_only_when_it_changes() -> None:
    instance, links = Instance(), dict[str, str]()
    pushing = Pushing(links, instance)
    assert instance.made == [("_link_PipelineStatusLink", PAGE)]
    for now in (status(), status(ui_url="http://a:4040"), status(ui_url="http://a:4040", application_id="app-1")):
        pushing.push(now)
        pushing.push(now)
    pushing.push(status(ui_url="http://b:4040", application_id="app-2"))
    assert [link for link in instance.made[1:] if link[0] != pipeline.STATUS_KEY] == [
        ("_link_SparkUILink", "http://a:4040"),
        ("_link_SparkApplicationLink", "http://a:4040/StreamingQuery/#app-1"),
        ("_link_SparkUILink", "http://b:4040"),
        ("_link_SparkApplicationLink", "http://b:4040/StreamingQuery/#app-2"),
    ]


def test_the_status_is_pushed_when_the_drivers_state_changes_and_else_at_its_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instance = Instance()
    pushing = Pushing({}, instance)
    for commit in range(1, 50):
        pushing.push(status(commit=commit))
    pushing.push(status(commit=50, state=DriverState.FINISHED))
    seen = [value for key, value in instance.made if key == pipeline.STATUS_KEY]
    assert [(pushed["commit"], pushed["state"]) for pushed in seen] == [(1, "running"), (50, "finished")]
    monkeypatch.setattr(pipeline, "STATUS_SECONDS", 0.0)
    pushing = Pushing({}, instance)
    pushing.push(status(commit=51))
    pushing.push(status(commit=52))
    assert [value["commit"] for key, value in instance.made if key == pipeline.STATUS_KEY][2:] == [51, 52]


def test_a_driver_is_not_left_alone_while_airflow_is_away() -> None:
    """Airflow's client gives up after some seconds, and its API server may take longer to come back."""
    instance, links = Instance(), dict[str, str]()
    instance.is_away = True
    pushing = Pushing(links, instance)
    pushing.push(status(ui_url="http://a:4040"))
    assert instance.made == []
    instance.is_away = False
    pushing.push(status(state=DriverState.FINISHED))
    assert [key for key, _ in instance.made] == [pipeline.STATUS_KEY]
    assert at_the_end(pipeline.LINKS, task_with(links), instance)["Spark UI"] == "http://a:4040"


def task_with(links: dict[str, str]) -> StreamingPipelineOperator:
    task = stream()
    task.pushed_links = links
    return task


def test_the_page_of_a_mapped_task_is_its_own() -> None:
    instance = Instance()
    instance.map_index = 3
    assert xcom_page(instance) == PAGE.replace("/xcom", "/mapped/3/xcom")


def test_a_task_that_never_ran_has_empty_links() -> None:
    assert set(at_the_end(pipeline.LINKS, stream(), Instance()).values()) == {""}


def test_a_task_that_comes_back_from_the_triggerer_repeats_what_was_pushed_before() -> None:
    instance, links = Instance(), dict[str, str]()
    Pushing(links, instance).push(status(ui_url="http://a:4040", application_id="app-1"))
    assert at_the_end(pipeline.LINKS, stream(), instance) == {
        "Pipeline status": PAGE,
        "Spark UI": "http://a:4040",
        "Spark application": "http://a:4040/StreamingQuery/#app-1",
    }


def test_on_yarn_the_application_has_the_resource_managers_page_where_its_logs_are() -> None:
    manager: Any = SimpleNamespace(page=lambda application_id: f"http://rm:8088/cluster/app/{application_id}")
    instance = Instance()
    Pushing({}, instance, manager).push(status(application_id="application_1_0001"))
    assert instance.xcom_pull("_link_SparkApplicationLink") == "http://rm:8088/cluster/app/application_1_0001"


def test_a_manager_without_pages_leaves_the_drivers() -> None:
    manager: Any = SimpleNamespace(page=lambda application_id: None)
    instance = Instance()
    Pushing({}, instance, manager).push(status(ui_url="http://a:4040", application_id="spark-1"))
    assert instance.xcom_pull("_link_SparkApplicationLink") == "http://a:4040/StreamingQuery/#spark-1"


@pytest.mark.parametrize("operator", [SavepointOperator, StopPipelineOperator])
def test_the_savepoint_has_a_link_where_one_is_taken(operator: type[SavepointOperator]) -> None:
    task = operator(task_id="save", pipeline="shop")
    assert [link.name for link in task.operator_extra_links] == ["Savepoint"]
    assert at_the_end(task.operator_extra_links, task, Instance()) == {"Savepoint": ""}


def test_the_scheduler_knows_the_links_from_the_serialized_dag() -> None:
    with DAG("shop") as dag:
        stream()
        SavepointOperator(task_id="save", pipeline="shop")
    restored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    known = {task.task_id: {link.name for link in task.operator_extra_links} for task in restored.tasks}
    assert known == {"stream": {"Pipeline status", "Spark UI", "Spark application"}, "save": {"Savepoint"}}
