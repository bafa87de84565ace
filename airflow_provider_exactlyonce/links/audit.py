"""The link to an audit's report."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
