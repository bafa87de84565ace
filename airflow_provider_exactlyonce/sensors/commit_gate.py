"""The sensor that lets a downstream task start when its input can be read."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
)

from airflow_provider_exactlyonce.triggers.commit_gate import BACKSTOP_SECONDS, CommitGateTrigger, GateReason, look

if TYPE_CHECKING:
    from airflow.sdk import Context


class CommitGateSensor(BaseSensorOperator):
    """Wait until everything that a pipeline wrote up to a target is committed and readable.

    Open only when the pipeline's ledger, read at read_committed, says that the target is committed, *and* the last
    stable offset of each sink partition has passed what was written up to there. A consumer at read_committed that
    starts afterwards sees all of it. Exactly one target is given. Returns ``{"pipeline": …, "commit": …}`` with the
    newest commit.

    A time-out names what is missing and by how much.

    .. seealso:: :mod:`airflow_provider_exactlyonce.ledger.gate` for what each target means

    :param pipeline: name of the pipeline. (templated)
    :param commit: number of a commit, for example ``"{{ ti.xcom_pull('stream')['commit'] }}"``. (templated)
    :param watermark: event time up to which the output is complete: a datetime, ISO 8601 (UTC without a zone), or
        milliseconds since the epoch. (templated)
    :param offsets: source offsets, ``{topic: {partition: offset}}``: every record before them is processed. (templated)
    :param timestamp: as ``watermark``: every source record before the first one of this time or later is processed. It
        is turned into offsets once (in mode ``reschedule`` at each poke). (templated)
    :param kafka_conn_id: connection of type ``kafka``. (templated)
    :param deferrable: wait in the triggerer; default from ``[operators] default_deferrable``
    :param poke_interval: seconds between two looks
    """

    template_fields: Sequence[str] = ("pipeline", "commit", "watermark", "offsets", "timestamp", "kafka_conn_id")
    ui_color = "#cde7d8"

    def __init__(
        self,
        *,
        pipeline: str,
        commit: int | str | None = None,
        watermark: datetime | str | int | None = None,
        offsets: Mapping[str, Mapping[Any, Any]] | str | None = None,
        timestamp: datetime | str | int | None = None,
        kafka_conn_id: str = "kafka_default",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poke_interval: timedelta | float = 5,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.pipeline = pipeline
        self.commit = commit
        self.watermark = watermark
        self.offsets = offsets
        self.timestamp = timestamp
        self.kafka_conn_id = kafka_conn_id
        self.deferrable = deferrable
        self._missing = "nothing could be asked yet"
        self._target: dict[str, Any] | None = None
        given = [name for name, value in self._given().items() if value is not None]
        if len(given) != 1:
            raise ValueError(
                f"{self.task_id}: give exactly one of commit, watermark, offsets, timestamp; given: "
                f"{', '.join(given) or 'none'}"
            )

    def execute(self, context: Context) -> Any:
        """Wait here, or defer.

        :raises AirflowSensorTimeout: naming what is missing
        """
        if self.deferrable:
            commit = self._look()
            if commit is not None:
                return self._opened(commit)
            self._defer(time.time() + self.timeout)
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
        commit = self._look()
        if commit is None:
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=self._opened(commit))

    def resume_from_trigger(self, context: Context, event: Mapping[str, Any], deadline: float) -> Any:
        """Read what the trigger has found.

        :raises AirflowException: at anything but an open gate
        """
        reason = event.get("reason")
        self._missing = str(event.get("missing", self._missing))
        if reason == GateReason.OPEN:
            return self._opened(int(event["commit"]))
        if reason == GateReason.TARGET_RESOLVED:
            self._target = dict(event["target"])
            self._defer(deadline)
        if reason == GateReason.TIMEOUT:
            self.log.error("%s", self._too_late())  # what soft_fail raises instead does not say it
            raise AirflowSensorTimeout(self._too_late())
        if reason == GateReason.REFUSED:
            raise AirflowFailException(self._missing)
        raise AirflowException(f"the trigger of {self.task_id} fired with an unknown event: {dict(event)!r}")

    def _look(self) -> int | None:
        """Look once; returns the newest commit when the gate is open."""
        from airflow_provider_exactlyonce.exceptions import Decision, ExactlyOnceError
        from airflow_provider_exactlyonce.ledger.gate import GateTarget

        self._target = self._target or GateTarget.parse(**self._given()).to_json()
        before = self._missing
        try:
            verdict = look(self.kafka_conn_id, self.pipeline, self._target)
        except ExactlyOnceError as error:
            if error.decision is Decision.REFUSE:
                raise AirflowFailException(str(error)) from error
            self._missing = str(error)  # a cluster that doesn't answer may answer before the time-out
        else:
            if verdict.open:
                return verdict.commit
            self._target, self._missing = verdict.target.to_json(), verdict.missing
        if self._missing != before:
            self.log.info("waiting for %s: %s", self.pipeline, self._missing)
        return None

    def _given(self) -> dict[str, Any]:
        return {
            "commit": self.commit,
            "watermark": self.watermark,
            "offsets": self.offsets,
            "timestamp": self.timestamp,
        }

    def _defer(self, deadline: float) -> NoReturn:
        self.defer(
            trigger=CommitGateTrigger(
                pipeline=self.pipeline,
                target=self._target or {},
                kafka_conn_id=self.kafka_conn_id,
                poll_interval=self.poke_interval,
                deadline=deadline,
            ),
            method_name="resume_from_trigger",
            kwargs={"deadline": deadline},
            timeout=timedelta(seconds=max(0.0, deadline - time.time()) + BACKSTOP_SECONDS),
        )
        raise AssertionError("defer() raises")

    def _opened(self, commit: int) -> dict[str, Any]:
        self.log.info("%s is readable up to its commit %s", self.pipeline, commit)
        return {"pipeline": self.pipeline, "commit": commit}

    def _too_late(self) -> str:
        return f"pipeline {self.pipeline}, after {self.timeout:g} s: {self._missing}"
