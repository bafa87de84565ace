"""Links to the running application."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_exactlyonce.links.pushed import PushedLink

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.control.status import Status


class SparkUILink(PushedLink):
    """The Spark UI of the driver."""

    name = "Spark UI"

    def url(self, status: Status) -> str | None:
        """Return the UI's front page."""
        return status.ui_url


class SparkApplicationLink(PushedLink):
    """The streaming query's page of this application."""

    name = "Spark application"

    def url(self, status: Status) -> str | None:
        """Return the streaming page, with the application's id where somebody looks for it."""
        if status.ui_url is None or status.application_id is None:
            return None
        return f"{status.ui_url}/StreamingQuery/#{status.application_id}"
