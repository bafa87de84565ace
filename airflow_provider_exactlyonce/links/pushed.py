"""Links that are there while the task still runs: pushed as soon as they are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink, conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

    from airflow_provider_exactlyonce.control.clusters import Cluster
    from airflow_provider_exactlyonce.control.status import Status


class PushedLink(BaseOperatorLink):
    """A link that an operator has pushed, or has noted in its ``pushed_links``.

    Airflow's own push comes after ``execute``, from :meth:`get_link`, and replaces ours. So :meth:`get_link` returns
    the same again, also in a task that was deferred, where the operator has forgotten its earlier push.
    """

    def url(self, status: Status, cluster: Cluster | None) -> str | None:
        """Return the address, as far as a driver's status tells it; None while it is unknown.

        :param cluster: on which the driver runs, None for none
        """
        return None

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the pushed address, empty when none was: a link without an address isn't shown."""
        pushed: dict[str, str] = getattr(operator, "pushed_links", {})
        if self.xcom_key in pushed:
            return pushed[self.xcom_key]
        pull = getattr(ti_key, "xcom_pull", None)  # in the worker it is the task instance itself
        return str(pull(key=self.xcom_key) or "") if pull is not None else ""


def xcom_page(task_instance: Any) -> str:
    """Return the address of Airflow's page with a task instance's XComs."""
    base = conf.get("api", "base_url", fallback="http://localhost:8080/").rstrip("/")
    index = task_instance.map_index
    mapped = f"/mapped/{index}" if index is not None and index >= 0 else ""
    names = [quote(name, safe="") for name in (task_instance.dag_id, task_instance.run_id, task_instance.task_id)]
    return "{}/dags/{}/runs/{}/tasks/{}{}/xcom".format(base, *names, mapped)
