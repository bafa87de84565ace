"""Waits in the triggerer until an upgrade has something to do."""

from __future__ import annotations

from typing import Any, ClassVar

from airflow_provider_exactlyonce.triggers.driver import DriverTrigger


class UpgradeTrigger(DriverTrigger):
    """Fire when a driver has answered, runs and has made its commits, or is gone; or when the time is over.

    :param commits: how many commits the driver has to make, None to wait for its end
    :param driver: as :class:`~airflow_provider_exactlyonce.triggers.driver.DriverTrigger` takes it
    """

    arguments: ClassVar[tuple[str, ...]] = (*DriverTrigger.arguments, "commits")

    def __init__(self, *, commits: int | None, **driver: Any) -> None:
        super().__init__(**driver)
        self.commits = commits
