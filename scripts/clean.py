"""Stop the brokers that ``make`` would otherwise pull the data from under, or clear the per-user cache.

Runs without .venv, with the standard library only; PYTHONPATH names the project.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from airflow_provider_exactlyonce.devkit.broker import end_broker
from airflow_provider_exactlyonce.devkit.errors import DevkitError
from airflow_provider_exactlyonce.devkit.state import STATE_NAME, BrokerState
from airflow_provider_exactlyonce.jars.cache import cache_directory, clear_cache

PROJECT = Path(__file__).resolve().parents[1]


def stop_brokers() -> None:
    """Stop every broker whose data lie below .exactlyonce."""
    for path in (PROJECT / ".exactlyonce").glob(f"**/{STATE_NAME}"):
        if state := BrokerState.load_living(path.parent):
            print(f"Stopping the broker on {path.parent}")
            end_broker(path.parent, state)


def main(arguments: list[str]) -> int:
    """Do the one or the other; on an error nothing may be removed."""
    try:
        if arguments == ["--cache"]:
            shutil.rmtree(cache_directory() / "benchmarks", ignore_errors=True)  # benchmarks/engines/flink_jars.py
            clear_cache()
            print(f"Removed: {cache_directory()}")
        else:
            stop_brokers()
    except DevkitError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
