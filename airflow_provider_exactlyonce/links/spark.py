"""Links to the running application: pushed as soon as the driver tells them, while the task still runs."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

    from airflow_provider_exactlyonce.control.status import Status


class _PushedLink(BaseOperatorLink):
    """A link whose address is known from the driver's status.

    Airflow's own push comes after ``execute``, from :meth:`get_link`; a stream's page is wanted before. The operator
    remembers what it has pushed, so that the later push repeats it.
    """

    @abstractmethod
    def url(self, status: Status) -> str | None:
        """Return the address, None while it is unknown."""

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return what was pushed, empty when nothing was."""
        pushed: dict[str, str] = getattr(operator, "pushed_links", {})
        return pushed.get(self.xcom_key, "")


class SparkUILink(_PushedLink):
    """The Spark UI of the driver."""

    name = "Spark UI"

    def url(self, status: Status) -> str | None:
        """Return the UI's front page."""
        return status.ui_url


class SparkApplicationLink(_PushedLink):
    """The streaming query's page of this application."""

    name = "Spark application"

    def url(self, status: Status) -> str | None:
        """Return the streaming page, with the application's id where somebody looks for it."""
        if status.ui_url is None or status.application_id is None:
            return None
        return f"{status.ui_url}/StreamingQuery/#{status.application_id}"


LINKS: tuple[_PushedLink, ...] = (SparkUILink(), SparkApplicationLink())


def push(links: tuple[_PushedLink, ...], status: Status, pushed: dict[str, str], task_instance: Any) -> None:
    """Push each link that has become known or has changed."""
    for link in links:
        url = link.url(status)
        if url is not None and pushed.get(link.xcom_key) != url:
            task_instance.xcom_push(key=link.xcom_key, value=url)
            pushed[link.xcom_key] = url
