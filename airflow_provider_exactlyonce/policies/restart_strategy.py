"""When a driver that died is started again.

Retries nest: a Produce is sent again < a batch is attempted again < **a driver is started again** < Airflow runs the
task again (``retries``). This is the third: it counts the drivers that one task try has lost, over all of the try's
supervisors.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import UnionType
from typing import Final

from airflow_provider_exactlyonce.exceptions import Decision, ExactlyOnceError

#: Failures after which the retained checkpoint can go on. Others would end the same way, or undo a successor's work.
RESTARTABLE: Final = frozenset({Decision.RESTART, Decision.REPLAY_BATCH, Decision.ASK_LEDGER})


#: The newest outages of a pipeline, which its home remembers one by one.
KEPT_OUTAGES: Final = 200


@dataclass(frozen=True, kw_only=True)
class Outage:
    """A death of a driver that was followed by a restart.

    :param died: seconds since the epoch
    :param relaunched: seconds since the epoch when the next driver was started, None when that is not known
    :param number: 1 for the first since the first start
    """

    died: float
    relaunched: float | None = None
    number: int


class RestartStrategy(ABC):
    """Decides whether and when a driver is started again; the supervisor asks after each death.

    A strategy holds no state: the outages are in the pipeline's home, so that they survive the supervisor.
    """

    def delay(self, error: ExactlyOnceError, past: Sequence[Outage], died: float) -> timedelta | None:
        """Return how long to wait before the next start, None for no further start.

        :param error: why the driver ended
        :param past: the newest outages since the first start, up to :data:`KEPT_OUTAGES`, oldest first
        :param died: when it ended, seconds since the epoch
        """
        return self._delay(past, died) if error.decision in RESTARTABLE else None

    @abstractmethod
    def _delay(self, past: Sequence[Outage], died: float) -> timedelta | None:
        """Decide about a failure that can be restarted; same arguments and answer as :meth:`delay`."""

    @staticmethod
    def fixed_delay(attempts: int, delay: timedelta) -> RestartStrategy:
        """Start again at most ``attempts`` times, each time after the same delay.

        :param delay: a ``timedelta`` or a ``pendulum.Duration``
        """
        _check_number("attempts", attempts, int)
        if attempts < 1:
            raise ValueError(f"attempts={attempts}: at least 1 restart; for none use RestartStrategy.none()")
        _check_pause("delay", delay)
        return LimitedRestarts(failures=attempts, interval=timedelta.max, pause=delay)

    @staticmethod
    def exponential(
        initial: timedelta = timedelta(seconds=1),
        maximum: timedelta = timedelta(minutes=1),
        multiplier: float = 1.5,
        jitter: float = 0.1,
        reset_after: timedelta = timedelta(hours=1),
    ) -> RestartStrategy:
        """Start again always, after a delay that grows from failure to failure.

        :param initial: the first delay
        :param maximum: no delay is longer
        :param multiplier: each delay by the one before
        :param jitter: share of the delay that is random, either way, so that pipelines that fail together don't start
            together
        :param reset_after: a driver that has run for so long begins with the first delay again
        """
        return ExponentialDelay(
            initial=initial, maximum=maximum, multiplier=multiplier, jitter=jitter, reset_after=reset_after
        )

    @staticmethod
    def failure_rate(
        max_failures: int = 1,
        interval: timedelta = timedelta(minutes=1),
        delay: timedelta = timedelta(seconds=1),
    ) -> RestartStrategy:
        """Start again after the same delay each time, as long as failures are rare.

        :param max_failures: failures within ``interval`` that are followed by a restart; one more ends it
        """
        _check_number("max_failures", max_failures, int)
        _check_pause("interval", interval)
        if max_failures < 1:
            raise ValueError(f"max_failures={max_failures}: at least 1; for none use RestartStrategy.none()")
        check_remembered("max_failures", max_failures)
        if interval <= timedelta(0):
            raise ValueError(f"interval={interval}: above 0")
        _check_pause("delay", delay)
        return LimitedRestarts(failures=max_failures, interval=interval, pause=delay)

    @staticmethod
    def none() -> RestartStrategy:
        """Never start again."""
        return LimitedRestarts(failures=0, interval=timedelta.max, pause=timedelta(0))


@dataclass(frozen=True, kw_only=True)
class LimitedRestarts(RestartStrategy):
    """The same delay before each restart, until failures are too many.

    :param failures: so many within ``interval`` are followed by a restart
    :param interval: :data:`timedelta.max` for all since the first start
    :param pause: delay before each
    """

    failures: int
    interval: timedelta
    pause: timedelta

    def _delay(self, past: Sequence[Outage], died: float) -> timedelta | None:
        if self.interval == timedelta.max:
            failures = past[-1].number if past else 0
        else:
            failures = sum(died - outage.died <= self.interval.total_seconds() for outage in past)
        return self.pause if failures < self.failures else None


@dataclass(frozen=True, kw_only=True)
class ExponentialDelay(RestartStrategy):
    """Delays that grow, without an end; see :meth:`RestartStrategy.exponential`."""

    initial: timedelta
    maximum: timedelta
    multiplier: float
    jitter: float
    reset_after: timedelta

    def __post_init__(self) -> None:
        for name in ("initial", "maximum"):
            _check_pause(name, getattr(self, name))
        for name in ("multiplier", "jitter"):
            _check_number(name, getattr(self, name), int | float)
        if not timedelta(0) < self.initial <= self.maximum:
            raise ValueError(f"initial={self.initial}: above 0 and at most maximum={self.maximum}")
        if self.multiplier < 1:
            raise ValueError(f"multiplier={self.multiplier}: at least 1, so that the delay does not shrink")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter={self.jitter}: a share of the delay, from 0 to 1")
        _check_pause("reset_after", self.reset_after)

    def _delay(self, past: Sequence[Outage], died: float) -> timedelta | None:
        first, longest = self.initial.total_seconds(), self.maximum.total_seconds()
        backoff = first
        deaths = [*(outage.died for outage in past), died]
        for outage, next_death in zip(past, deaths[1:], strict=True):
            began = outage.died if outage.relaunched is None else outage.relaunched
            grown = min(backoff * self.multiplier, longest)
            backoff = first if next_death - began >= self.reset_after.total_seconds() else grown
        varied = backoff * (1 + random.uniform(-self.jitter, self.jitter))
        return timedelta(seconds=max(first, min(varied, longest)))


def check_remembered(name: str, value: int) -> None:
    """Check that a number of failures within a time can be counted.

    :raises ValueError: when a home does not remember so many
    """
    if value > KEPT_OUTAGES:
        raise ValueError(f"{name}={value}: at most {KEPT_OUTAGES}, for so many failures are remembered")


def _check_pause(name: str, value: timedelta) -> None:
    if not isinstance(value, timedelta):
        raise ValueError(f"{name}={value!r}: a timedelta, such as timedelta(seconds=10)")
    if value < timedelta(0):
        raise ValueError(f"{name}={value}: not negative")


def _check_number(name: str, value: object, kind: type | UnionType) -> None:
    if isinstance(value, bool) or not isinstance(value, kind):
        raise ValueError(f"{name}={value!r}: a number")
