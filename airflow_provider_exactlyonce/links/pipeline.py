"""Links to a task's XComs about its pipeline.

A pipeline has no web page of its own, and its home is no URL. What the task knows is pushed, and shown by Airflow: the
links lead to that page.
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.links.pushed import PushedLink, xcom_page
from airflow_provider_exactlyonce.links.spark import SparkApplicationLink, SparkUILink

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.control.clusters import Cluster
    from airflow_provider_exactlyonce.control.status import Status

_log = logging.getLogger(__name__)

#: XCom key of the driver's last account of itself.
STATUS_KEY: Final = "pipeline_status"
#: How often it is pushed, in seconds; a change of the driver's state is pushed at once.
STATUS_SECONDS: Final = 10.0


class PipelineStatusLink(PushedLink):
    """The driver's last account of itself, as the task has pushed it."""

    name = "Pipeline status"


class SavepointLink(PushedLink):
    """The savepoint that a task has taken: its id, path, commit and size. A driver's status knows of none."""

    name = "Savepoint"


#: Of a task that runs a pipeline.
LINKS: Final = (PipelineStatusLink(), SparkUILink(), SparkApplicationLink())


class Pushing:
    """Pushes a task's links and its pipeline's status, as often as people may want to see them.

    Made when a driver is about to be submitted: the link to the status is there from then on.

    :param links: the operator's ``pushed_links``
    :param cluster: on which the driver runs, None for none
    """

    def __init__(self, links: dict[str, str], task_instance: Any, cluster: Cluster | None = None) -> None:
        self._links: Final = links
        self._cluster: Final = cluster
        self._task_instance: Final = task_instance
        self._state: tuple[str, str] | None = None
        self._next = 0.0
        self._show(PipelineStatusLink(), xcom_page(task_instance))

    def push(self, status: Status) -> None:
        """Push new links, and the status when it is due."""
        for link in LINKS:
            url = link.url(status, self._cluster)
            if url is not None and self._links.get(link.xcom_key) != url:
                self._show(link, url)
        state = (status.token, status.state.value)
        if state == self._state and time.monotonic() < self._next:
            return
        self._state, self._next = state, time.monotonic() + STATUS_SECONDS
        self._push(STATUS_KEY, {**asdict(status), "state": status.state.value})

    def _show(self, link: PushedLink, url: str) -> None:
        self._links[link.xcom_key] = url  # which Airflow pushes once more in the end
        self._push(link.xcom_key, url)

    def _push(self, key: str, value: Any) -> None:
        """Push a value for people; never raises: the driver stays supervised while Airflow's API server is away."""
        try:
            self._task_instance.xcom_push(key=key, value=value)
        except Exception as error:  # whatever it is
            _log.warning("Airflow does not take %s, which the task shows: %s", key, error)
