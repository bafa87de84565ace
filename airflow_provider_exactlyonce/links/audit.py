"""The link to an audit's report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink, conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class AuditReportLink(BaseOperatorLink):
    """The task's page with its report, which is its XCom ``return_value``."""

    name = "Audit report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the address."""
        return report_url(ti_key)


def report_url(task_instance: Any) -> str:
    """Return the address of the page that shows a task instance's XComs.

    :param task_instance: what names it: DAG, run, task and map index
    """
    base = conf.get("api", "base_url", fallback="/").rstrip("/")
    dag, run, task = (quote(getattr(task_instance, name), safe="") for name in ("dag_id", "run_id", "task_id"))
    index = getattr(task_instance, "map_index", None)
    mapped = f"/mapped/{index}" if index is not None and index >= 0 else ""
    return f"{base}/dags/{dag}/runs/{run}/tasks/{task}{mapped}/xcom"
