"""The link to an audit's report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

from airflow_provider_exactlyonce.links.pushed import xcom_page

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class AuditReportLink(BaseOperatorLink):
    """The task's page with its report, which is its XCom ``return_value``."""

    name = "Audit report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the address."""
        return xcom_page(ti_key)


def push_report(task_instance: Any, report: Mapping[str, Any]) -> None:
    """Make a report the XCom of a task that fails, with its link: Airflow pushes what a task returns, and nothing else.

    :param task_instance: of the running task
    """
    task_instance.xcom_push(key="return_value", value=report)
    task_instance.xcom_push(key=AuditReportLink().xcom_key, value=xcom_page(task_instance))
