"""What importing the package loads, and what it costs a DAG file."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.unit.test_import_rules import AIRFLOW_HALF, HEAVY, PACKAGE, ROOT, modules, name_of, top


def names_of(parts: Iterable[str]) -> list[str]:
    files = [file for file in modules() if top(name_of(file)) in parts and file.stem not in ("__init__", "__main__")]
    return [f"{PACKAGE}." + ".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]


RUNTIME_HALF = {top(name_of(file)) for file in modules()} - {*AIRFLOW_HALF, "get_provider_info", ""}


#: Imports what is given first, then forks a child per trial: refuses some modules, imports others. Each prints its CPU
#: seconds, because a busy machine is not our cost.
TRIALS = """
import importlib, json, os, sys, time
first, trials = json.loads(sys.argv[1])
began = time.process_time()
for name in first:
    importlib.import_module(name)
print(time.process_time() - began, flush=True)
class Refuse:
    def __init__(self, names):
        self.names = names
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise SystemExit(f"{name} was imported")
for refused, names in trials:
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0, (refused, names)
        continue
    sys.meta_path.insert(0, Refuse(refused))
    began = time.process_time()
    for name in names:
        importlib.import_module(name)
    print(time.process_time() - began, flush=True)
    os._exit(0)
"""


def seconds_to_import(folder: Path, first: list[str], trials: list[tuple[list[str], list[str]]]) -> list[float]:
    """Return what importing the first ones took, then what each trial took on top of them."""
    done = subprocess.run(
        [sys.executable, "-c", TRIALS, json.dumps([first, trials])],
        env={**os.environ, "AIRFLOW_HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.split()[-len(trials) - 1 :]]


def test_the_runtime_half_really_runs_without_airflow(tmp_path: Path) -> None:
    seconds_to_import(tmp_path, [], [(["airflow"], names_of(RUNTIME_HALF))])


def test_the_airflow_half_loads_no_spark_and_no_kafka_client_and_costs_a_dag_file_a_tenth_of_airflows_own_sdk(
    tmp_path: Path,
) -> None:
    imports = names_of(("operators", "sensors", "triggers"))
    cost = (list[str](), imports)
    rule = (list(HEAVY), names_of(AIRFLOW_HALF))
    airflows, *ours = seconds_to_import(tmp_path, ["airflow.sdk"], [cost, cost, cost, cost, cost, rule])
    assert statistics.median(ours[:5]) < airflows / 10, (airflows, ours)
