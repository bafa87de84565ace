"""The sensor that lets a downstream task start when its input can be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_exactlyonce.hooks import arguments
from airflow_provider_exactlyonce.ledger.gate_target import GateTarget, check_one
from airflow_provider_exactlyonce.sensors.polling import PollingSensor
from airflow_provider_exactlyonce.triggers.commit_gate import TARGETS, CommitGateTrigger, gate_of

if TYPE_CHECKING:
    from airflow.sdk import Context


class CommitGateSensor(PollingSensor):
    """Wait until everything that a pipeline wrote up to a target is committed and readable.

    Open only when the pipeline's ledger, read at read_committed, says that the target is committed, *and* the last
    stable offset of each sink partition has passed the rows written up to there. A consumer at read_committed that
    starts afterwards sees all of it. It joins no group and commits nothing.

    Exactly one target is given. Returns ``pipeline``, ``commit`` (the newest one), ``idle`` and ``late_rows``: how many
    rows the pipeline's operators have left out behind their watermark up to that commit, None when that is unknown. A
    time-out names what is missing and by how much.

    .. seealso:: :mod:`airflow_provider_exactlyonce.ledger.gate` for what each target means

    :param pipeline: name of the pipeline. (templated)
    :param commit: number of a commit, for example ``"{{ ti.xcom_pull('stream')['commit'] }}"``. (templated)
    :param watermark: event time up to which the output is complete: a datetime, ISO 8601 (UTC without a zone), or
        milliseconds since the epoch. (templated)
    :param offsets: source offsets, ``{topic: {partition: offset}}``: every record before them is processed. (templated)
    :param timestamp: as ``watermark``: every source record before the first one of this time or later is processed. It
        is turned into offsets once; retries keep them. (templated)
    :param up_to_now: everything that is in the source topics at the first try, undecided transactions included, is
        processed. Retries keep the offsets; a task that is cleared reads them anew. Before the pipeline's first commit
        the topics are unknown: then the offsets are read at the first check after that commit
    :param idle_after: seconds after which the gate opens although the target isn't met, when the pipeline has nothing
        to do: its newest commit is so old, it ends where its source ends, and all of it is readable. ``idle`` in the
        result is true then
    :param start_from_trigger: start in the triggerer, without a worker, and end there too when the gate opens, unless
        the task has outlets. Not with ``timestamp`` and ``up_to_now``, whose offsets only a worker can keep
    :param kafka_conn_id: connection of type ``kafka``. (templated)
    :param deferrable: wait in the triggerer; default from ``[operators] default_deferrable``
    :param poke_interval: seconds between two checks; in the triggerer twice a second at least, for all gates of a
        cluster together
    """

    template_fields: Sequence[str] = ("pipeline", "commit", "watermark", "offsets", "timestamp", "kafka_conn_id")
    ui_color = "#cde7d8"
    trigger_cls = CommitGateTrigger

    def __init__(
        self,
        *,
        pipeline: str,
        commit: int | str | None = None,
        watermark: datetime | str | int | None = None,
        offsets: Mapping[str, Mapping[Any, Any]] | str | None = None,
        timestamp: datetime | str | int | None = None,
        up_to_now: bool = False,
        idle_after: timedelta | float | None = None,
        start_from_trigger: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.commit = commit
        self.watermark = watermark
        self.offsets = offsets
        self.timestamp = timestamp
        self.up_to_now = up_to_now or None
        self.idle_after = idle_after.total_seconds() if isinstance(idle_after, timedelta) else idle_after
        if idle_after is not None:
            arguments.check_spans(self, "idle_after")
        check_one(self.task_id, self._target())
        arguments.check(self, lambda: GateTarget.parse(**self._target()), *TARGETS)
        if start_from_trigger and (timestamp is not None or up_to_now):
            raise ValueError(
                f"{self.task_id}: start_from_trigger=True does not go with timestamp and up_to_now: retries keep the "
                "offsets that belong to them, which needs a worker; use deferrable=True"
            )
        if start_from_trigger:
            self.start_without_worker(self._subject_of(self._target()))

    def prepare(self, context: Context) -> dict[str, Any]:
        """Read the target, or find the offsets that an earlier try has fixed.

        :raises RefusedError: when the target can't be read
        """
        with arguments.reading(self, *TARGETS):
            target = gate_of(self._subject_of(self._target())).target
        kept = None if target.is_resolved else self.kept(context)
        return {**self._subject_of(target.to_json()), **(kept or {})}

    def asked_for(self) -> dict[str, Any]:
        """Return the target, as JSON."""
        return {"pipeline": self.pipeline, **gate_of(self._subject_of(self._target())).target.to_json()}

    def _target(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in TARGETS}

    def _subject_of(self, target: Mapping[str, Any]) -> dict[str, Any]:
        fields = {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in {**dict.fromkeys(TARGETS), **target}.items()
        }
        return {"pipeline": self.pipeline, **fields, "idle_after": self.idle_after}
