"""A convention that a fresh process shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.unit.test_conventions import CLASSES, parameters

SHOW_DEFAULTS = """
import importlib, inspect, json, sys
found = {}
for name in json.loads(sys.argv[1]):
    module, _, one = name.rpartition(".")
    for part in getattr(importlib.import_module(module), one).__mro__:
        given = inspect.signature(inspect.unwrap(part.__init__)).parameters.get("deferrable")
        if given is not None:
            found[name] = given.default
            break
print(json.dumps(found))
"""


def test_all_that_can_defer_follow_airflows_default(tmp_path: Path) -> None:
    able = [task_class for task_class in CLASSES if "deferrable" in parameters(task_class)]
    names = [f"{task_class.__module__}.{task_class.__name__}" for task_class in able]
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "True"}
    command = [sys.executable, "-c", SHOW_DEFAULTS, json.dumps(names)]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(shown.stdout.splitlines()[-1]) == dict.fromkeys(names, True)
    assert {parameters(task_class)["deferrable"].default for task_class in able} == {False}, (
        "Airflow's own default, in this process"
    )
