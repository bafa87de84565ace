"""Waits in the triggerer for a state of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_exactlyonce.triggers.polling import Look, PollingTrigger, asked


class PipelineStateTrigger(PollingTrigger):
    """Fire when a pipeline is in one of the states, or the deadline has passed; the triggerer must see its home.

    :param pipeline: name of the pipeline, None when ``checkpoint`` is given
    :param checkpoint: its home, None when ``pipeline`` is given
    :param states: values of :class:`~airflow_provider_exactlyonce.control.state.PipelineState`
    :param kafka_conn_id: connection of type ``kafka``
    :param poll_interval: seconds between two looks
    :param deadline: seconds since the epoch
    """

    def look(self, *, blame: bool) -> Look:
        """Read the home."""
        of = self.subject
        return look(of["kafka_conn_id"], of["pipeline"], of["checkpoint"], of["states"])


def look(kafka_conn_id: str, pipeline: str | None, checkpoint: str | None, states: Sequence[str]) -> Look:
    """Look once; blocks. The sensor's poke and the trigger both come through here.

    :raises RefusedError: when the home is another pipeline's
    :raises ExactlyOnceError: when it can't be said
    """
    return asked(kafka_conn_id, lambda: _look(kafka_conn_id, pipeline, checkpoint, states))


def _look(kafka_conn_id: str, pipeline: str | None, checkpoint: str | None, states: Sequence[str]) -> Look:
    from airflow_provider_exactlyonce.control.state import PipelineState, state_of
    from airflow_provider_exactlyonce.exceptions import UnknownPipelineError
    from airflow_provider_exactlyonce.hooks import home as homes

    try:
        home, name = homes.find(kafka_conn_id, pipeline=pipeline, checkpoint=checkpoint)
    except UnknownPipelineError:
        name, state, status = pipeline or str(checkpoint), PipelineState.ABSENT, None
    else:
        state, status = state_of(home)
    if state.value in states:
        run, commit = (status.run, status.commit) if status else (0, 0)
        return Look(found={"pipeline": name, "state": state.value, "run": run, "commit": commit})
    why = f" ({status.error.kind}: {status.error.message})" if status is not None and status.error else ""
    return Look(missing=f"pipeline {name} is {state.value}{why}, waiting for {' or '.join(states)}")
