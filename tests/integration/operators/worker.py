"""A try of a task in a process of its own, as Airflow's executors start it: ``worker.py FOLDER CHECKPOINT PLAN ...``.

The last line that it prints is the task's result, as JSON.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from tests.integration.operators.test_streaming import execute, operator

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    folder, checkpoint, *plans = sys.argv[1:]
    print(json.dumps(execute(operator(Path(folder), *plans, checkpoint=checkpoint))))
