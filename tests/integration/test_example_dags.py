"""The examples in ``dags/``: they load at once, show every operator and sensor, and each is run by a test."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_conventions import CLASSES

ROOT = Path(__file__).parents[2]
DAGS = ROOT / "dags"
EXAMPLES = sorted(file for file in DAGS.glob("*.py") if re.search(r"^with DAG\(|^@dag", file.read_text(), re.MULTILINE))
TRIALS = 3

#: Loads a file as Airflow's DAG processor does, each time in a child of its own that has what Airflow itself loads.
LOAD = """
import importlib.util, json, os, sys, time
began = time.process_time()  # a busy or slow machine is not our cost
import airflow.sdk, airflow.dag_processing.dagbag, airflow.serialization.serialized_objects
airflow.sdk.Asset("first", uri="first://of/all")  # asks all providers that are installed how they read a URI
from airflow.sdk.definitions._internal.contextmanager import DagContext
print("@" + json.dumps(time.process_time() - began), flush=True)
def load(file):
    spec = importlib.util.spec_from_file_location("example", file)
    module = importlib.util.module_from_spec(spec)
    DagContext.autoregistered_dags.clear()
    DagContext.current_autoregister_module_name = "example"
    sys.modules["example"] = module
    spec.loader.exec_module(module)
    return [dag for dag, _ in DagContext.autoregistered_dags]
for trial in range(int(sys.argv[2])):
    for file in json.loads(sys.argv[1]):
        if child := os.fork():
            assert os.waitpid(child, 0)[1] == 0, file
            continue
        began = time.process_time()
        dags = load(file)
        seconds = time.process_time() - began
        tasks = [[type(task).__name__, [field for field in task.template_fields if not hasattr(task, field)]]
                 for dag in dags for task in dag.tasks]
        print("@" + json.dumps([file, seconds, [dag.dag_id for dag in dags], tasks]), flush=True)
        os._exit(0)
"""


@pytest.fixture(scope="module")
def loads(tmp_path_factory: pytest.TempPathFactory) -> tuple[float, list[dict[str, Any]]]:
    """Load every example some times; gives Airflow's own seconds of CPU, and file, seconds, DAGs and tasks of each."""
    files = json.dumps([str(file) for file in EXAMPLES])
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow")),
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(DAGS)]),
    }
    command = [sys.executable, "-c", LOAD, files, str(TRIALS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    airflows, *rows = [json.loads(line[1:]) for line in done.stdout.splitlines() if line.startswith("@")]
    assert len(rows) == TRIALS * len(EXAMPLES)
    return airflows, [dict(zip(("file", "seconds", "dags", "tasks"), row, strict=True)) for row in rows]


@pytest.fixture(scope="module")
def loaded(loads: tuple[float, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Give what each load of an example found."""
    return loads[1]


def test_an_example_costs_an_eighth_of_what_airflow_itself_loads(loads: tuple[float, list[dict[str, Any]]]) -> None:
    airflows, loaded = loads
    least = {
        file.name: min(example["seconds"] for example in loaded if example["file"] == str(file)) for file in EXAMPLES
    }
    assert {name: seconds for name, seconds in least.items() if seconds >= airflows / 8} == {}, (airflows, least)


def test_every_operator_and_sensor_is_shown_in_an_example(loaded: list[dict[str, Any]]) -> None:
    shown = {name for example in loaded for name, _ in example["tasks"]}
    assert {task_class.__name__ for task_class in CLASSES} - shown == set()


def test_each_templated_field_is_there_when_a_task_is_made(loaded: list[dict[str, Any]]) -> None:
    assert [task for example in loaded for task in example["tasks"] if task[1]] == []


def test_the_example_has_a_name_and_no_two_have_one(loaded: list[dict[str, Any]]) -> None:
    names = [name for example in loaded[: len(EXAMPLES)] for name in example["dags"]]
    assert all(example["dags"] for example in loaded)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.name)
def test_each_example_is_run_by_a_test(example: Path) -> None:
    """Some test, or the demo that it runs, runs it through ``dag.test()`` or triggers it in a real Airflow."""
    runners = [*(ROOT / "tests/integration").rglob("*.py"), *(ROOT / "demo").glob("*.py")]
    dags = re.findall(r'DAG\(\s*(?:dag_id=)?"(\w+)"', example.read_text())
    assert dags
    for dag in dags:
        texts = [text for file in runners if f'"{dag}"' in (text := file.read_text())]
        assert any(".test(" in text or '"trigger"' in text for text in texts), f"no test runs {dag} of {example.name}"
