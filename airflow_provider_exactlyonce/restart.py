"""When a driver that died is started again.

Retries nest: a Produce is sent again < a batch is attempted again < **a driver is started again** < Airflow runs the
task again (``retries``). This is the third: it counts the drivers that one task try has lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from airflow_provider_exactlyonce.exceptions import Decision, ExactlyOnceError

#: Failures after which the retained checkpoint can go on. Others would end the same way, or undo a successor's work.
RESTARTABLE: Final = frozenset({Decision.RESTART, Decision.REPLAY_BATCH, Decision.ASK_LEDGER})


class RestartStrategy(ABC):
    """Decides whether and when a driver is started again; the supervisor asks after each death.

    A strategy holds no state: the supervisor keeps the count, on disk, so that it survives the supervisor.
    """

    def delay(self, error: ExactlyOnceError, restarts: int) -> timedelta | None:
        """Return how long to wait before the next start, None for no further start.

        :param error: why the driver ended
        :param restarts: restarts so far
        """
        return self._delay(restarts) if error.decision in RESTARTABLE else None

    @abstractmethod
    def _delay(self, restarts: int) -> timedelta | None:
        """Decide about a failure that can be restarted; same arguments and answer as :meth:`delay`."""

    @staticmethod
    def fixed_delay(attempts: int, delay: timedelta) -> RestartStrategy:
        """Start again at most ``attempts`` times, each time after the same delay.

        :param delay: a ``timedelta`` or a ``pendulum.Duration``
        """
        return FixedDelay(attempts=attempts, pause=delay)

    @staticmethod
    def none() -> RestartStrategy:
        """Never start again."""
        return NoRestart()


@dataclass(frozen=True, kw_only=True)
class FixedDelay(RestartStrategy):
    """The same delay before each of a limited number of restarts.

    :param attempts: restarts, at least 1
    :param pause: delay before each
    """

    attempts: int
    pause: timedelta

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts={self.attempts}: at least 1 restart; for none use RestartStrategy.none()")
        if self.pause < timedelta(0):
            raise ValueError(f"delay={self.pause}: a delay is not negative")

    def _delay(self, restarts: int) -> timedelta | None:
        return self.pause if restarts < self.attempts else None


@dataclass(frozen=True, kw_only=True)
class NoRestart(RestartStrategy):
    """No restart at all."""

    def _delay(self, restarts: int) -> timedelta | None:
        return None
