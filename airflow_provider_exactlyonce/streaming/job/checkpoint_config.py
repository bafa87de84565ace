"""How a pipeline checkpoints, in the words that Flink has for it.

Spark checkpoints with every micro-batch: a batch is a checkpoint, its commit completes it, a failed attempt of it is a
failed checkpoint. What Spark can't do so is refused, never ignored; docs/checkpoints.md goes through the settings one
by one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.checkpoint.savepoints import DEFAULT_RETENTION, SavepointRetention
from airflow_provider_exactlyonce.exceptions import RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.streaming.spark.query_runner import ProcessBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RETAINED: Final = "spark.sql.streaming.minBatchesToRetain"
#: A batch is planned from the offsets of the one before it, and a start may have to run the last one again.
_FEWEST_RETAINED: Final = 2
_POLL_SECONDS: Final = 0.2


class CheckpointingMode(StrEnum):
    """A pipeline's guarantee, on which readers of the output may rely."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"


class OnCancellation(StrEnum):
    """The treatment of the checkpoint when the driver is requested to stop; a signal alone is no request."""

    RETAIN = "retain"
    DELETE = "delete"


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """How a pipeline checkpoints.

    :param mode: the pipeline's ``guarantee``, in Flink's word; None leaves it to that
    :param interval: Spark's trigger interval; None begins a batch as soon as there is data
    :param min_pause: between the end of a batch and the begin of the next
    :param timeout: of one attempt of a batch, from its first record to its commit; None leaves it to the sink
    :param tolerable_failed_checkpoints: attempts of one batch that may fail in succession; None leaves it to
        ``max_batch_attempts``
    :param max_concurrent: 1
    :param unaligned: False
    :param on_cancellation: the treatment of the checkpoint when a stop is requested
    :param retained: batches that Spark keeps the files of; None for Spark's default, 100
    :param savepoints: which savepoints are kept
    :raises RefusedError: when a value can't be, or Spark can't honour it
    """

    mode: CheckpointingMode | None = None
    interval: timedelta | None = None
    min_pause: timedelta = timedelta(0)
    timeout: timedelta | None = None
    tolerable_failed_checkpoints: int | None = None
    max_concurrent: int = 1
    unaligned: bool = False
    on_cancellation: OnCancellation = OnCancellation.RETAIN
    retained: int | None = None
    savepoints: SavepointRetention = DEFAULT_RETENTION

    def __post_init__(self) -> None:
        if self.mode is not None and self.mode not in tuple(CheckpointingMode):
            raise self._refused("mode", "exactly_once, at_least_once or at_most_once")
        if self.on_cancellation not in tuple(OnCancellation):
            raise self._refused("on_cancellation", "retain or delete")
        object.__setattr__(self, "on_cancellation", OnCancellation(self.on_cancellation))  # it may be given as text
        if self.interval is not None and self.interval < timedelta(0):
            raise self._refused("interval", "not negative")
        if self.min_pause < timedelta(0):
            raise self._refused("min_pause", "not negative")
        if self.timeout is not None and self.timeout < timedelta(seconds=1):
            raise self._refused("timeout", "at least a second")
        if self.tolerable_failed_checkpoints is not None and self.tolerable_failed_checkpoints < 0:
            raise self._refused("tolerable_failed_checkpoints", "not negative")
        if self.max_concurrent != 1:
            raise self._refused("max_concurrent", "1: Spark begins a micro-batch when the one before it is committed")
        if self.unaligned:
            raise self._refused(
                "unaligned", "False: a micro-batch is aligned by its end, and no barrier waits in a buffer"
            )
        if self.retained is not None and self.retained < _FEWEST_RETAINED:
            raise self._refused(
                "retained", f"at least {_FEWEST_RETAINED}: a batch is planned from the offsets of the one before it"
            )

    def _refused(self, name: str, wanted: str) -> RefusedError:
        return RefusedError(f"CheckpointConfig({name}={getattr(self, name)!r}): it must be {wanted}")

    @property
    def trigger_interval(self) -> str:
        """The trigger's interval as Spark writes it."""
        return f"{int((self.interval or timedelta(0)) / timedelta(milliseconds=1))} milliseconds"

    def settings(self, get: Callable[[str], str | None]) -> Mapping[str, str]:
        """Return the Spark settings to make.

        :param get: returns a setting as it was given at submit, None when it was not
        :raises SettingRefusedError: when one was given that contradicts
        """
        if self.retained is None:
            return {}
        given = get(_RETAINED)
        if given not in (None, str(self.retained)):
            raise SettingRefusedError(
                _RETAINED, given, str(self.retained), f"the pipeline says CheckpointConfig(retained={self.retained})"
            )
        return {_RETAINED: str(self.retained)}

    def guarantee(self, given: str | None) -> CheckpointingMode:
        """Return the pipeline's guarantee.

        :param given: the pipeline's ``guarantee``, None when it is not declared
        :raises RefusedError: when there is no such guarantee, or both are declared and differ
        """
        if given is not None and given not in tuple(CheckpointingMode):
            raise RefusedError(f"guarantee={given!r}: one of {', '.join(CheckpointingMode)}")
        if given is not None and self.mode not in (None, given):
            raise RefusedError(
                f"guarantee={str(given)!r} and CheckpointConfig(mode={str(self.mode)!r}) contradict each other: both "
                "are what a reader of the output may rely on; say only one"
            )
        return CheckpointingMode(given or self.mode or CheckpointingMode.EXACTLY_ONCE)

    def transaction_timeout_seconds(self, given: int, default: int) -> int:
        """Return how long a batch's transaction may take.

        :param given: the sink's
        :param default: the value when neither is declared
        :raises RefusedError: when both are declared and differ
        """
        if self.timeout is None:
            return given
        seconds = math.ceil(self.timeout.total_seconds())
        if given not in (default, seconds):
            raise RefusedError(
                f"transaction_timeout_seconds={given} of the sink and CheckpointConfig(timeout={self.timeout}) "
                "contradict each other: both are the time of one attempt of a batch; say only one"
            )
        return seconds

    def max_batch_attempts(self, given: int | None, default: int) -> int:
        """Return how often a batch is attempted.

        :param given: the pipeline's ``max_batch_attempts``, None when it does not say
        :raises RefusedError: when both are declared and differ
        """
        if self.tolerable_failed_checkpoints is None:
            return default if given is None else given
        attempts = self.tolerable_failed_checkpoints + 1
        if given not in (None, attempts):
            raise RefusedError(
                f"max_batch_attempts={given} and CheckpointConfig(tolerable_failed_checkpoints="
                f"{self.tolerable_failed_checkpoints}) contradict each other: the first is one more than the second; "
                "say only one"
            )
        return attempts


class PausedBatches:
    """Keeps a pause between batches.

    :param config: says how long it is
    :param process: called with each
    :param stop_reason: why a stop was asked for, which ends the pause
    """

    def __init__(self, config: CheckpointConfig, process: ProcessBatch, stop_reason: Callable[[], str | None]) -> None:
        self._seconds: Final = config.min_pause.total_seconds()
        self._process: Final = process
        self._stop_reason: Final = stop_reason
        self._pause_end = 0.0

    def process(self, frame: DataFrame, number: int) -> None:
        """Wait for the end of the pause, then process the batch."""
        while (remaining := self._pause_end - time.monotonic()) > 0 and self._stop_reason() is None:
            time.sleep(min(remaining, _POLL_SECONDS))
        try:
            self._process(frame, number)
        finally:
            self._pause_end = time.monotonic() + self._seconds
