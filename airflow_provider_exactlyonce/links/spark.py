"""Links to the running application."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_exactlyonce.links.pushed import PushedLink

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.control.clusters import Cluster
    from airflow_provider_exactlyonce.control.status import Status


class SparkUILink(PushedLink):
    """The Spark UI of the driver."""

    name = "Spark UI"

    def url(self, status: Status, cluster: Cluster | None) -> str | None:
        """Return the UI's front page."""
        return status.ui_url


class SparkApplicationLink(PushedLink):
    """The application's page: its cluster manager's, with its logs, or the streaming query's in the driver's UI."""

    name = "Spark application"

    def url(self, status: Status, cluster: Cluster | None) -> str | None:
        """Return the manager's page, else the streaming page with the application's id where somebody looks for it."""
        if status.application_id is None:
            return None
        page = cluster.page(status.application_id) if cluster is not None else None
        streaming = f"{status.ui_url}/StreamingQuery/#{status.application_id}" if status.ui_url is not None else None
        return page or streaming
