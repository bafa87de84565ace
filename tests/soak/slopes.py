"""Does something grow? A robust slope over samples of processes that were restarted meanwhile, and what it means.

The slope is the median of the slopes between all pairs of samples of one process (Theil and Sen), over all processes of
a kind together; its interval is that of Sen, with Kendall's variances added up, as in the seasonal test of Hirsch,
Slack and Smith (1982).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

#: A process's first minutes are its start: what it loads stays.
WARM_UP_SECONDS = 180.0
#: Of a shorter time in all nothing is concluded: what begins grows for a while.
LEAST_SECONDS = 1800.0
_LEAST_SAMPLES = 5
#: Neighbours are alike; their medians are counted once.
_MOST_POINTS = 120
_Z = 1.96  # 95 %

GROWS, STEADY, UNCERTAIN, TOO_SHORT = "grows", "steady", "uncertain", "too short"

#: (seconds, value)
Samples = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Slope:
    """How fast something grows.

    :param per_hour: the slope
    :param low: its 95 % interval begins here
    :param high: and ends here
    :param seconds: how long was looked: over all processes, those that lived side by side once
    :param processes: how many were long enough there
    :param typical: median of the values
    """

    per_hour: float
    low: float
    high: float
    seconds: float
    processes: int
    typical: float

    def verdict(self, allowed_per_hour: float) -> str:
        """Say whether it grows by more than is allowed.

        :param allowed_per_hour: less than this is no leak
        """
        if self.seconds < LEAST_SECONDS:
            return TOO_SHORT
        if self.low > allowed_per_hour:
            return GROWS
        return STEADY if self.high <= allowed_per_hour else UNCERTAIN


def slope(processes: Mapping[object, Samples], warm_up_seconds: float = WARM_UP_SECONDS) -> Slope | None:
    """Return the slope over all processes of a kind, None where no process lived for long enough.

    :param processes: {what tells it from others: its samples, in order}
    :param warm_up_seconds: left out at the beginning of each
    """
    lives = [_points(samples, warm_up_seconds) for samples in processes.values()]
    lives = [life for life in lives if len(life) >= _LEAST_SAMPLES]
    if not lives:
        return None
    slopes = np.sort(np.concatenate([_pairs(life) for life in lives]))
    spread = _Z * math.sqrt(sum(_variance(life[:, 1]) for life in lives))
    last = len(slopes) - 1
    low, high = (round((last + sign * spread) / 2) for sign in (-1, 1))
    return Slope(
        per_hour=float(np.median(slopes)),
        low=float(slopes[max(0, low)]),
        high=float(slopes[min(last, high)]),
        seconds=_seconds(lives),
        processes=len(lives),
        typical=float(np.median(np.concatenate([life[:, 1] for life in lives]))),
    )


def _seconds(lives: Sequence[npt.NDArray[np.float64]]) -> float:
    span = max(life[-1, 0] for life in lives) - min(life[0, 0] for life in lives)
    return float(min(span, sum(life[-1, 0] - life[0, 0] for life in lives)))


def _points(samples: Samples, warm_up_seconds: float) -> npt.NDArray[np.float64]:
    """Return what is left of a process's samples after its start, few enough to compare each with each."""
    kept = [sample for sample in samples if sample[0] >= samples[0][0] + warm_up_seconds]
    points = np.array(kept, float).reshape(-1, 2)
    if len(points) <= _MOST_POINTS:
        return points
    return np.array([np.median(part, axis=0) for part in np.array_split(points, _MOST_POINTS)])


def _pairs(points: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the slope between each two points, an hour."""
    earlier, later = np.triu_indices(len(points), 1)
    seconds, rises = (points[later] - points[earlier]).T
    slopes: npt.NDArray[np.float64] = 3600 * rises[seconds > 0] / seconds[seconds > 0]
    return slopes


def _variance(values: npt.NDArray[np.float64]) -> float:
    """Return the variance of Kendall's S, less for values that are equal."""
    n = len(values)
    _, ties = np.unique(values, return_counts=True)
    return float(n * (n - 1) * (2 * n + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()) / 18
