"""The links survive what Airflow does to a DAG between its file and its pages."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_exactlyonce.control.status import DriverState, Status
from airflow_provider_exactlyonce.links import spark
from airflow_provider_exactlyonce.operators.streaming import StreamingPipelineOperator


class Pushes:
    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []

    def xcom_push(self, key: str, value: str) -> None:
        self.made.append((key, value))


def status(**changes: Any) -> Status:
    return Status(pipeline="shop", token="t", state=DriverState.RUNNING, **changes)


def test_a_link_is_pushed_once_known_and_again_only_when_it_changes() -> None:
    pushes, pushed = Pushes(), {}
    for now in (status(), status(ui_url="http://a:4040"), status(ui_url="http://a:4040", application_id="app-1")):
        spark.push(spark.LINKS, now, pushed, pushes)
        spark.push(spark.LINKS, now, pushed, pushes)
    spark.push(spark.LINKS, status(ui_url="http://b:4040", application_id="app-2"), pushed, pushes)
    assert pushes.made == [
        ("_link_SparkUILink", "http://a:4040"),
        ("_link_SparkApplicationLink", "http://a:4040/StreamingQuery/#app-1"),
        ("_link_SparkUILink", "http://b:4040"),
        ("_link_SparkApplicationLink", "http://b:4040/StreamingQuery/#app-2"),
    ]


def test_a_task_that_never_ran_has_empty_links() -> None:
    task = StreamingPipelineOperator(task_id="stream", application="a.py", checkpoint="/h")
    assert [link.get_link(task, ti_key=None) for link in spark.LINKS] == ["", ""]  # type: ignore[arg-type]


def test_the_scheduler_knows_the_links_from_the_serialized_dag() -> None:
    with DAG("shop") as dag:
        StreamingPipelineOperator(task_id="stream", application="a.py", checkpoint="/h")
    restored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    [task] = restored.tasks
    assert {link.name for link in task.operator_extra_links} == {"Spark UI", "Spark application"}
