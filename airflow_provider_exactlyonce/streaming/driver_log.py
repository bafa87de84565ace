"""The log of a driver's process: all of it goes to stderr, beside Spark's own; stdout is the job's."""

from __future__ import annotations

import logging
import sys
from typing import Final

_FORMAT: Final = "%(asctime)s %(levelname)s %(message)s"


def configure() -> None:
    """Set up this process's log."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=_FORMAT, force=True)
    for noisy in ("py4j", "kafka"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
