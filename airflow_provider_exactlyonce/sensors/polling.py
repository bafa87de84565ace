"""The base of the sensors that poll, in the worker and in the triggerer."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from airflow.sdk import BaseSensorOperator, PokeReturnValue, XComArg, conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSensorTimeout, AirflowSkipException
from airflow.triggers.base import StartTriggerArgs

from airflow_provider_exactlyonce.exceptions import Decision, ExactlyOnceError
from airflow_provider_exactlyonce.triggers.polling import BACKSTOP_SECONDS, PollingTrigger, PollReason
from airflow_provider_exactlyonce.triggers.shared_poller import DIAGNOSE_SECONDS, Checker, name_of

if TYPE_CHECKING:
    from airflow.sdk import Context

_KEY: Final = "exactlyonce_waits_for"


class PollingSensor(BaseSensorOperator):
    """Poll until the check succeeds or the time is over; a time-out names what is missing."""

    #: Waits in the triggerer; its checker is used in the worker, too.
    trigger_cls: ClassVar[type[PollingTrigger]]

    def __init__(
        self,
        *,
        kafka_conn_id: str = "kafka_default",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poke_interval: timedelta | float = 5,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.kafka_conn_id = kafka_conn_id
        self.deferrable = deferrable
        self._checker: Checker | None = None
        self._subject: dict[str, Any] = {}
        self._missing = "nothing could be asked yet"
        self._diagnosed = float("-inf")

    @abstractmethod
    def prepare(self, context: Context) -> dict[str, Any]:
        """Return the checker's subject; called at the start of each try and of each poke after a reschedule.

        :raises ExactlyOnceError: when it can't be determined
        """

    def execute(self, context: Context) -> Any:
        """Wait here, or defer.

        :raises AirflowSensorTimeout: naming what is missing
        :raises AirflowFailException: when waiting does not help
        :raises AirflowSkipException: instead of both, with ``soft_fail`` or ``never_fail``
        """
        try:
            self._subject = self._prepared(context)
            return self._wait(context)
        except AirflowFailException as error:  # which the first look before a deferral has found, or none
            if self.soft_fail or self.never_fail:
                self.log.error("%s", error)
                raise AirflowSkipException(str(error)) from error
            raise
        finally:
            if self._checker is not None:
                self._checker.close()

    def _prepared(self, context: Context) -> dict[str, Any]:
        try:
            return self.prepare(context)
        except ExactlyOnceError as error:
            if error.decision is Decision.REFUSE:
                raise AirflowFailException(f"{error} ({error.page()})") from error
            raise

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        result = self._check(context)
        return PokeReturnValue(is_done=result is not None, xcom_value=result)

    def resume_from_trigger(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Return the result of the trigger's event.

        :raises AirflowException: when the event has no result
        """
        reason = event.get("reason")
        self._missing = str(event.get("missing", self._missing))
        if reason == PollReason.FOUND:
            self.log.info("%s", event["found"])
            return event["found"]
        if reason == PollReason.FIXED:
            self._subject = {**self.prepare(context), **self.keep(context, event["fixed"])}
            self._defer(float(event["deadline"]))
        if reason == PollReason.TIMEOUT:
            self.log.error("%s", self._sentence())  # what soft_fail raises instead does not say it
            raise AirflowSensorTimeout(self._sentence())
        if reason == PollReason.REFUSED:
            raise AirflowFailException(self._missing)
        raise AirflowException(f"the trigger of {self.task_id} fired with an unknown event: {dict(event)!r}")

    def asked_for(self) -> dict[str, Any]:
        """Return a fingerprint of the target, to detect that a kept one belongs to another target; JSON values."""
        return {}

    def kept(self, context: Context) -> dict[str, Any] | None:
        """Return the target that an earlier try has fixed, None for none; a task that is cleared starts over."""
        store: Any = context.get("task_state_store")
        kept: Any = store.get(_KEY) if store is not None else None
        if kept is None or not kept["for"].items() <= self._fingerprint(context).items():  # 0.1.0 has kept less
            return None
        return dict(kept["fixed"])

    def keep(self, context: Context, fixed: dict[str, Any]) -> dict[str, Any]:
        """Store the fixed target for this try and later ones, and return it."""
        from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined]  # its stub lacks it

        store: Any = context.get("task_state_store")
        if store is not None:
            store.set(_KEY, {"for": self._fingerprint(context), "fixed": fixed}, retention=NEVER_EXPIRE)
        self.log.info("waiting for %s", fixed)
        return fixed

    def start_without_worker(self, subject: Mapping[str, Any]) -> None:
        """Let the scheduler hand the task to the triggerer, which ends it, too, unless it has outlets or no result.

        :param subject: the checker's subject, templates unrendered
        """
        for name, value in subject.items():
            if isinstance(value, XComArg):
                raise ValueError(
                    f"{self.task_id}: {name} is the output of a task, which only a worker can fetch; with "
                    "start_from_trigger=True use a template, \"{{ ti.xcom_pull('task')['key'] }}\""
                )
        timeout_seconds, backstop = self.timeout + BACKSTOP_SECONDS, BACKSTOP_SECONDS
        if self.execution_timeout is not None and self.execution_timeout.total_seconds() < timeout_seconds:
            timeout_seconds = self.execution_timeout.total_seconds()  # by which Airflow ends a task that starts so, too
            backstop = min(backstop, timeout_seconds / 2)
            self.timeout = timeout_seconds - backstop
        self.deferrable = True
        self.start_from_trigger = True
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls=f"{self.trigger_cls.__module__}.{self.trigger_cls.__qualname__}",
            next_method="resume_from_trigger",
            trigger_kwargs={
                **subject,
                "kafka_conn_id": self.kafka_conn_id,
                "poll_interval": self.poke_interval,
                "backstop": backstop,
                "ends_task": self.do_xcom_push and not self.outlets,
            },
            timeout=timedelta(seconds=timeout_seconds),
        )

    def _wait(self, context: Context) -> Any:
        if self.deferrable:
            result = self._check(context)
            if result is not None:
                return result
            self._defer(time.time() + self.timeout)
        try:
            return super().execute(context)
        except AirflowSensorTimeout as error:
            raise AirflowSensorTimeout(self._too_late(context)) from error
        except AirflowSkipException as error:
            if error.__cause__ is not None:  # it is no time-out
                raise
            raise AirflowSkipException(self._too_late(context)) from error

    def _defer(self, deadline: float) -> NoReturn:
        self.defer(
            trigger=self.trigger_cls(
                kafka_conn_id=self.kafka_conn_id,
                poll_interval=self.poke_interval,
                deadline=deadline,
                **self._subject,
            ),
            method_name="resume_from_trigger",
            timeout=timedelta(seconds=max(0.0, deadline - time.time()) + BACKSTOP_SECONDS),
        )

    def _check(self, context: Context, *, diagnose: bool = False) -> dict[str, Any] | None:
        self._checker = self._checker or self.trigger_cls.checker(self.kafka_conn_id)
        diagnose = diagnose or time.monotonic() - self._diagnosed >= DIAGNOSE_SECONDS
        self._diagnosed = time.monotonic() if diagnose else self._diagnosed
        name = name_of(self._subject)
        result = self._checker.check({name: self._subject}, diagnose=diagnose)[name]
        if isinstance(result, Exception):
            raise result
        if result.refused:
            raise AirflowFailException(result.missing)
        if result.fixed is not None:
            self._subject = {**self._subject, **self.keep(context, result.fixed)}
        if result.found is not None:
            self.log.info("%s", result.found)
            return result.found
        if diagnose or result.missing != self._missing:
            self.log.info("waiting: %s", result.missing)
        self._missing = result.missing
        return None

    def _fingerprint(self, context: Context) -> dict[str, Any]:
        run, ti = context.get("dag_run"), context.get("ti")
        # Each clear of the task changes its last try, also one that does not count as a clear of its DAG run.
        tries = {} if ti is None else {"max_tries": getattr(ti, "max_tries", None)}
        return {**self.asked_for(), "clear_number": getattr(run, "clear_number", 0), **tries}

    def _too_late(self, context: Context) -> str:
        """Check once more; returns the time-out's message, with what is missing now and why."""
        self._check(context, diagnose=True)
        return self._sentence()

    def _sentence(self) -> str:
        return f"after {self.timeout:g} s: {self._missing}"
