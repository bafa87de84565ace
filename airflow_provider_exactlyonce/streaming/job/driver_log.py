"""The log of a driver's process. It goes to stderr, which spark-submit passes on as its stdout."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

_FORMAT: Final = "%(asctime)s %(levelname)s %(message)s"
_QUIET_SECONDS: Final = 60.0
#: ``extra`` of a line that says again and again that the cluster is away.
AWAY: Final = {"cluster_is_away": True}


class ClusterAway(logging.Filter):
    """Lets one line a minute through of those that say that the cluster is away, with a count of the others.

    They come from kafka-python, several times a second, and from every failed request to the cluster.

    :param clock: seconds
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._last_line = float("-inf")
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide about one line."""
        if record.name.partition(".")[0] != "kafka" and not hasattr(record, "cluster_is_away"):
            return True
        with self._lock:
            now = self._clock()
            if now - self._last_line < _QUIET_SECONDS:
                self._left_out += 1
                return False
            self._last_line = now
            left_out, self._left_out = self._left_out, 0
        count = f" ({left_out:,} such messages since the last one)" if left_out else ""
        record.msg, record.args = f"Kafka: {record.getMessage()}{count}", ()
        return True


def configure() -> None:
    """Set up this process's log."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=_FORMAT, force=True)
    for handler in logging.getLogger().handlers:
        handler.addFilter(ClusterAway())
    logging.getLogger("kafka").setLevel(logging.ERROR)
    logging.getLogger("aiobotocore").setLevel(logging.WARNING)  # where it has found credentials, again and again
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # its errors are raised, too
