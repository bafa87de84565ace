"""The sensor that waits for a state of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_exactlyonce.sensors.polling import PollingSensor
from airflow_provider_exactlyonce.triggers.pipeline_state import PipelineStateTrigger, look

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_exactlyonce.triggers.polling import Look, PollingTrigger


class PipelineStateSensor(PollingSensor):
    """Wait until a pipeline is in one of the given states.

    The states are ``absent`` (no driver has ever reported), ``starting``, ``running``, ``silent`` (the driver holds the
    pipeline and gives no sign of life), ``finished``, ``stopped``, ``failed`` and ``lost`` (it ended without an
    account); after the last two its supervisor may be about to start the next driver.

    Returns ``pipeline``, ``state``, and ``run`` and ``commit`` as the last driver has reported them. A time-out names
    the state that it is in, and the driver's error.

    :param pipeline: the pipeline's name; its home is looked up in its ledger. (templated)
    :param checkpoint: the pipeline's home, instead. (templated)
    :param states: one state or several. (templated)
    :param kafka_conn_id: connection of type ``kafka``. (templated)
    :param deferrable: wait in the triggerer, which must see the home; default from ``[operators] default_deferrable``
    :param poke_interval: seconds between two looks
    """

    template_fields: Sequence[str] = ("pipeline", "checkpoint", "states", "kafka_conn_id")
    ui_color = "#cde7d8"

    def __init__(
        self,
        *,
        pipeline: str | None = None,
        checkpoint: str | None = None,
        states: Sequence[str] | str = "running",
        kafka_conn_id: str = "kafka_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if pipeline is None and checkpoint is None:
            raise ValueError(f"{self.task_id}: give pipeline or checkpoint")
        self.pipeline = pipeline
        self.checkpoint = checkpoint
        self.states = states
        self.kafka_conn_id = kafka_conn_id

    def prepare(self, context: Context) -> None:
        """Check the states, which may come from a template.

        :raises RefusedError: when one is none
        """
        from airflow_provider_exactlyonce.control.state import PipelineState
        from airflow_provider_exactlyonce.exceptions import RefusedError

        known = [state.value for state in PipelineState]
        unknown = [state for state in self._states() if state not in known]
        if unknown or not self._states():
            raise RefusedError(f"states={self.states!r}: one or more of {', '.join(known)}")

    def look(self, *, blame: bool) -> Look:
        """Read the home."""
        return look(self.kafka_conn_id, self.pipeline, self.checkpoint, self._states())

    def trigger(self, deadline: float) -> PollingTrigger:
        """Return what waits in the triggerer."""
        return PipelineStateTrigger(
            pipeline=self.pipeline,
            checkpoint=self.checkpoint,
            states=self._states(),
            kafka_conn_id=self.kafka_conn_id,
            poll_interval=self.poke_interval,
            deadline=deadline,
        )

    def _states(self) -> list[str]:
        return [self.states] if isinstance(self.states, str) else [str(state) for state in self.states]
