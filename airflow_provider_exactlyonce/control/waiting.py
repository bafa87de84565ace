"""What somebody who asks a pipeline for something waits for: a plain value, for workers, triggers and commands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WaitCondition:
    """What has to happen before there is something to do.

    :param token: start token of the driver that is asked; None between a driver's death and its restart: the next
        driver has no token yet
    :param request: the savepoint that it is asked for, None when its end is waited for
    :param commits: or that it runs and has made so many commits, None when its end alone is waited for
    :param seconds: after so many there is something to do in any case
    """

    token: str | None
    request: str | None = None
    commits: int | None = None
    seconds: float = 60.0
