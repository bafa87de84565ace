"""The sensor that waits for a state of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_exactlyonce.hooks import arguments
from airflow_provider_exactlyonce.sensors.polling import PollingSensor
from airflow_provider_exactlyonce.triggers.pipeline_state import PipelineStateTrigger, states_of

if TYPE_CHECKING:
    from airflow.sdk import Context


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
    :param start_from_trigger: start in the triggerer, without a worker, and end there too, unless the task has outlets
    :param kafka_conn_id: connection of type ``kafka``. (templated)
    :param deferrable: wait in the triggerer, which must see the home; default from ``[operators] default_deferrable``
    :param poke_interval: seconds between two checks
    """

    template_fields: Sequence[str] = ("pipeline", "checkpoint", "states", "kafka_conn_id")
    ui_color = "#cde7d8"
    trigger_cls = PipelineStateTrigger

    def __init__(
        self,
        *,
        pipeline: str | None = None,
        checkpoint: str | None = None,
        states: Sequence[str] | str = "running",
        start_from_trigger: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if pipeline is None and checkpoint is None:
            raise ValueError(f"{self.task_id}: give pipeline or checkpoint")
        self.pipeline = pipeline
        self.checkpoint = checkpoint
        self.states = states
        arguments.check(self, lambda: states_of(self.states), "states")
        if start_from_trigger:
            self.start_without_worker({"pipeline": pipeline, "checkpoint": checkpoint, "states": states})

    def prepare(self, context: Context) -> dict[str, Any]:
        """Check the states, which may come from a template.

        :raises RefusedError: when one is none
        """
        return {"pipeline": self.pipeline, "checkpoint": self.checkpoint, "states": states_of(self.states)}
