"""The operators that save, stop and clean up a pipeline that another task or person runs."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator, conf

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.requests import WaitCondition
from airflow_provider_exactlyonce.exceptions import NotAnsweredError
from airflow_provider_exactlyonce.hooks import arguments, kafka
from airflow_provider_exactlyonce.hooks import home as homes
from airflow_provider_exactlyonce.links.pipeline import SavepointLink
from airflow_provider_exactlyonce.links.pushed import xcom_page
from airflow_provider_exactlyonce.operators.retry import failing_for_good
from airflow_provider_exactlyonce.triggers.driver import DriverTrigger
from airflow_provider_exactlyonce.triggers.polling import BACKSTOP_SECONDS

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

    from airflow_provider_exactlyonce.checkpoint.manifest import Savepoint
    from airflow_provider_exactlyonce.checkpoint.request import SavepointTaker
    from airflow_provider_exactlyonce.checkpoint.savepoints import SavepointRetention
    from airflow_provider_exactlyonce.control.drivers import FailureDetector


class _PipelineOperator(BaseOperator):
    """Names a pipeline, by its name or by its home."""

    template_fields: Sequence[str] = ("pipeline", "checkpoint", "kafka_conn_id")
    ui_color = "#f4d9c6"

    def __init__(
        self,
        *,
        pipeline: str | None = None,
        checkpoint: str | None = None,
        kafka_conn_id: str = "kafka_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if pipeline is None and checkpoint is None:
            raise ValueError(f"{self.task_id}: give pipeline or checkpoint")
        self.pipeline = pipeline
        self.checkpoint = checkpoint
        self.kafka_conn_id = kafka_conn_id

    def _home(self) -> tuple[Home, str]:
        return homes.find(self.kafka_conn_id, pipeline=self.pipeline, checkpoint=self.checkpoint)


class _AskingOperator(_PipelineOperator):
    """Asks a driver and waits for it, here or in the triggerer.

    Each step may be repeated: the request is on disk under a name that is derived from the task instance, and an answer
    is looked up before the driver is asked. So a retry, and the return from the triggerer, begin like the first try.
    """

    operator_extra_links: Collection[BaseOperatorLink] = (SavepointLink(),)

    def __init__(
        self,
        *,
        timeout: timedelta | float = timedelta(minutes=5),
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: timedelta | float = timedelta(seconds=1),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.timeout = timeout
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        arguments.check_spans(self, "timeout", "poll_interval")
        self.pushed_links: dict[str, str] = {}

    def execute(self, context: Context) -> dict[str, Any]:
        """Ask, and wait for it.

        :raises NotAnsweredError: when the driver has not done it in time; names the driver
        :raises AirflowFailException: when a retry would not help
        :raises ExactlyOnceError: when it failed, with the driver's own words
        """
        return self._go_on(context, time.time() + arguments.seconds(self.timeout))

    def resume_from_trigger(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Go on where the trigger has found something to do, or the time is over."""
        return self._go_on(context, float(event["deadline"]))

    def _go_on(self, context: Context, deadline: float) -> dict[str, Any]:
        from airflow_provider_exactlyonce.control.drivers import FailureDetector

        with failing_for_good():
            home, pipeline = self._home()
            request, detector = homes.request_of(home, context), FailureDetector(home)
            request.begin()
            while isinstance(result := self._step(home, pipeline, request.name, detector), WaitCondition):
                if time.time() >= deadline:
                    raise self._too_late(home, pipeline, request.name, result)
                if self.deferrable:
                    self._defer(home, result, deadline)
                time.sleep(home.look_every(arguments.seconds(self.poll_interval)))
            request.done()
        self.log.info("%s", result)
        if result.get("savepoint") is not None:
            self.pushed_links[SavepointLink().xcom_key] = xcom_page(context["ti"])
        return result

    def _defer(self, home: Home, wait: WaitCondition, deadline: float) -> NoReturn:
        self.defer(
            trigger=DriverTrigger(
                home=home.location,
                token=wait.token,
                request=wait.request,
                poll_interval=arguments.seconds(self.poll_interval),
                deadline=deadline,
            ),
            method_name="resume_from_trigger",
            timeout=timedelta(seconds=max(0.0, deadline - time.time()) + BACKSTOP_SECONDS),
        )

    @abstractmethod
    def _step(
        self, home: Home, pipeline: str, request: str, detector: FailureDetector
    ) -> dict[str, Any] | WaitCondition:
        """Take the next step; returns the task's result, or the condition to wait for before the next step."""

    @abstractmethod
    def _too_late(self, home: Home, pipeline: str, request: str, wait: WaitCondition) -> NotAnsweredError:
        """Return the error of a driver that has not answered in time."""


class SavepointOperator(_AskingOperator):
    """Take a savepoint of a pipeline, whether it runs, idles or is stopped.

    A driver that runs takes it beside its query; of a pipeline that is stopped it is taken here. Each task instance
    takes one: a retry finds the savepoint that was taken. A task that was done and is cleared takes another.

    Returns ``pipeline``, ``savepoint`` (its id), ``label``, ``commit``, ``lineage``, ``batch``, ``size`` (bytes),
    ``created`` (milliseconds since the epoch) and ``path``.

    :param pipeline: the pipeline's name; its home is looked up in its ledger. (templated)
    :param checkpoint: the pipeline's home, instead. (templated)
    :param label: a name for people. With ``.partial(label=…)`` and a task's output as label, Airflow does not see that
        the task comes first: declare it, ``first >> save``. (templated)
    :param kafka_conn_id: connection of type ``kafka``. (templated)
    :param timeout: how long the driver may take, seconds or a timedelta
    :param deferrable: wait in the triggerer, which must see the home; default from ``[operators] default_deferrable``
    :param poll_interval: how often the driver's answer is read
    """

    template_fields: Sequence[str] = (*_PipelineOperator.template_fields, "savepoint_label")

    def __init__(self, *, label: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.savepoint_label = label  # each node of Airflow's has a label of its own, which can't be set

    def _step(
        self, home: Home, pipeline: str, request: str, detector: FailureDetector
    ) -> dict[str, Any] | WaitCondition:
        taken = self._taker(home, pipeline, request, detector).advance()
        return taken if isinstance(taken, WaitCondition) else _facts(home, taken)

    def _too_late(self, home: Home, pipeline: str, request: str, wait: WaitCondition) -> NotAnsweredError:
        from airflow_provider_exactlyonce.checkpoint.request import not_answered

        self._taker(home, pipeline, request).forget()
        return not_answered(home, wait.token)

    def _taker(
        self, home: Home, pipeline: str, request: str, detector: FailureDetector | None = None
    ) -> SavepointTaker:
        from airflow_provider_exactlyonce.checkpoint.request import SavepointTaker

        return SavepointTaker(
            home,
            pipeline,
            lambda: kafka.client_config(self.kafka_conn_id),
            request=request,
            label=self.savepoint_label,
            detector=detector,
        )


class StopPipelineOperator(_AskingOperator):
    """Stop a pipeline's driver before its next batch, with a savepoint if that is wanted.

    The driver ends its current batch. A pipeline that is stopped already is a success. Each task instance stops one
    driver: a retry waits for the same driver, and does not stop a driver that was started after it. A task that was
    done and is cleared stops the pipeline again.

    Returns ``pipeline``, ``home``, ``state`` (see
    :class:`~airflow_provider_exactlyonce.control.pipeline_state.PipelineState`), ``run`` and ``commit`` as the last
    driver has reported them, and ``savepoint``: what :class:`SavepointOperator` returns, or None.

    :param pipeline: the pipeline's name; its home is looked up in its ledger. (templated)
    :param checkpoint: the pipeline's home, instead. (templated)
    :param savepoint: True, or a label, takes a savepoint when the last batch is committed; the driver ends after it.
        (templated)
    :param kafka_conn_id: connection of type ``kafka``. (templated)
    :param timeout: how long the driver may take to end its batch, seconds or a timedelta
    :param deferrable: wait in the triggerer, which must see the home; default from ``[operators] default_deferrable``
    :param poll_interval: how often it is checked whether the driver has ended
    """

    template_fields: Sequence[str] = (*_PipelineOperator.template_fields, "savepoint")

    def __init__(self, *, savepoint: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.savepoint = savepoint

    def _step(
        self, home: Home, pipeline: str, request: str, detector: FailureDetector
    ) -> dict[str, Any] | WaitCondition:
        from airflow_provider_exactlyonce.checkpoint.stop import Stop, Stopped
        from airflow_provider_exactlyonce.control.pipeline_state import state_of

        stop = Stop(
            home,
            pipeline,
            lambda: kafka.client_config(self.kafka_conn_id),
            request=request,
            reason=f"task {self.dag_id}.{self.task_id}",
            savepoint=arguments.wish(self.savepoint),
            detector=detector,
        )
        stopped = stop.advance()
        if not isinstance(stopped, Stopped):
            return stopped
        state, status = state_of(home)
        if status is not None and status.error is not None and status.token == stopped.token:
            self.log.warning("the driver failed before it was stopped: %s: %s", status.error.kind, status.error.message)
        return {
            "pipeline": pipeline,
            "home": str(home),
            "state": state.value,
            "run": status.run if status else None,
            "commit": status.commit if status else None,
            "savepoint": _facts(home, stopped.savepoint) if stopped.savepoint else None,
        }

    def _too_late(self, home: Home, pipeline: str, request: str, wait: WaitCondition) -> NotAnsweredError:
        from airflow_provider_exactlyonce.checkpoint.stop import not_stopped

        return not_stopped(home, pipeline, wait.token, arguments.seconds(self.timeout))


class CleanUpSavepointsOperator(_PipelineOperator):
    """Delete savepoints that are no longer kept, and the remains of interrupted saves. The pipeline may run.

    A savepoint is deleted only when ``count`` and ``days`` both allow it; the newest and pinned ones always stay.

    Returns ``pipeline``, ``deleted`` and ``kept``: the savepoints' ids.

    :param pipeline: the pipeline's name; its home is looked up in its ledger. (templated)
    :param checkpoint: the pipeline's home, instead. (templated)
    :param count: keep the newest so many. (templated)
    :param days: keep everything younger. (templated)
    :param kafka_conn_id: connection of type ``kafka``. (templated)
    """

    template_fields: Sequence[str] = (*_PipelineOperator.template_fields, "count", "days")

    def __init__(self, *, count: int | str = 10, days: float | str = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.count = count
        self.days = days
        arguments.check(self, self._retention, "count", "days")

    def execute(self, context: Context) -> dict[str, Any]:
        """Delete them.

        :raises AirflowFailException: when there is no such pipeline, or a number is negative
        :raises ExactlyOnceError: when the cluster does not answer
        """
        from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints

        with failing_for_good():
            home, pipeline = self._home()
            savepoints = Savepoints(home.savepoints)
            deleted = savepoints.clean_up(self._retention())
        kept = [savepoint.id for savepoint in savepoints.list()]
        self.log.info("%s: %d savepoints deleted, %d kept", pipeline, len(deleted), len(kept))
        return {"pipeline": pipeline, "deleted": list(deleted), "kept": kept}

    def _retention(self) -> SavepointRetention:
        from airflow_provider_exactlyonce.checkpoint.savepoints import SavepointRetention

        with arguments.reading(self, "count", "days"):
            return SavepointRetention(count=int(self.count), days=float(self.days))


def _facts(home: Home, savepoint: Savepoint) -> dict[str, Any]:
    return {
        "pipeline": savepoint.pipeline,
        "savepoint": savepoint.id,
        "label": savepoint.label,
        "commit": savepoint.commit,
        "lineage": savepoint.lineage,
        "batch": savepoint.batch,
        "size": savepoint.size,
        "created": savepoint.created,
        "path": f"{home}/{home.savepoints.name}/{savepoint.id}",
    }
