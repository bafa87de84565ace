"""What the sensors that look again and again have in common, here and in the triggerer."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSensorTimeout, AirflowSkipException

from airflow_provider_exactlyonce.triggers.polling import BLAME_SECONDS, Look, PollingTrigger, PollReason

if TYPE_CHECKING:
    from airflow.sdk import Context

#: Airflow's own time-out of the deferral comes this much after ours: it knows nothing of what is missing.
_BACKSTOP_SECONDS: Final = 60.0


class PollingSensor(BaseSensorOperator):
    """Looks until it has found, or the time is over; then it names what is missing.

    :param deferrable: wait in the triggerer; default from ``[operators] default_deferrable``
    :param poke_interval: seconds between two looks
    """

    def __init__(
        self,
        *,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poke_interval: timedelta | float = 5,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.deferrable = deferrable
        self._missing = "nothing could be asked yet"
        self._blamed = 0.0

    @abstractmethod
    def prepare(self, context: Context) -> None:
        """Fix what is waited for; called at the begin of each try and each poke after a reschedule.

        :raises ExactlyOnceError: when that can't be said
        """

    @abstractmethod
    def look(self, *, blame: bool) -> Look:
        """Look once.

        :param blame: find out who is to blame, too
        :raises ExactlyOnceError: when it can't be said
        """

    @abstractmethod
    def trigger(self, deadline: float) -> PollingTrigger:
        """Return what waits in the triggerer."""

    def execute(self, context: Context) -> Any:
        """Wait here, or defer.

        :raises AirflowSensorTimeout: naming what is missing
        :raises AirflowFailException: when waiting does not help
        """
        from airflow_provider_exactlyonce.exceptions import Decision, ExactlyOnceError

        try:
            self.prepare(context)
        except ExactlyOnceError as error:
            if error.decision is Decision.REFUSE:
                raise AirflowFailException(str(error)) from error
            raise
        if self.deferrable:
            found = self._look()
            if found is not None:
                return found
            deadline = time.time() + self.timeout
            self.defer(
                trigger=self.trigger(deadline),
                method_name="resume_from_trigger",
                timeout=timedelta(seconds=self.timeout + _BACKSTOP_SECONDS),
            )
        try:
            return super().execute(context)
        except AirflowSensorTimeout as error:
            raise AirflowSensorTimeout(self._too_late()) from error
        except AirflowSkipException as error:
            if isinstance(error.__cause__, AirflowException):
                raise
            raise AirflowSkipException(self._too_late()) from error

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        found = self._look()
        return PokeReturnValue(is_done=found is not None, xcom_value=found)

    def resume_from_trigger(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Read what the trigger has found.

        :raises AirflowException: at anything but that
        """
        reason = event.get("reason")
        self._missing = str(event.get("missing", self._missing))
        if reason == PollReason.FOUND:
            self.log.info("%s", event["found"])
            return event["found"]
        if reason == PollReason.TIMEOUT:
            self.log.error("%s", self._sentence())  # what soft_fail raises instead does not say it
            raise AirflowSensorTimeout(self._sentence())
        if reason == PollReason.REFUSED:
            raise AirflowFailException(self._missing)
        raise AirflowException(f"the trigger of {self.task_id} fired with an unknown event: {dict(event)!r}")

    def _look(self, *, blame: bool = False) -> dict[str, Any] | None:
        from airflow_provider_exactlyonce.exceptions import Decision, ExactlyOnceError

        blame = blame or time.monotonic() - self._blamed >= BLAME_SECONDS
        self._blamed = time.monotonic() if blame else self._blamed
        before = self._missing
        try:
            now = self.look(blame=blame)
        except ExactlyOnceError as error:
            if error.decision is Decision.REFUSE:
                raise AirflowFailException(str(error)) from error
            now = Look(missing=str(error))  # a cluster that doesn't answer may answer before the time-out
        if now.found is not None:
            self.log.info("%s", now.found)
            return now.found
        self._missing = now.missing
        if blame or now.missing != before:
            self.log.info("waiting: %s", now.missing)
        return None

    def _too_late(self) -> str:
        """Look once more, for who is to blame now."""
        self._look(blame=True)
        return self._sentence()

    def _sentence(self) -> str:
        return f"after {self.timeout:g} s: {self._missing}"
