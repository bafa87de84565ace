"""Who may import whom, and what an import costs: read from the source, and tried in a process of its own."""

from __future__ import annotations

import ast
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import airflow_provider_exactlyonce

PACKAGE = "airflow_provider_exactlyonce"
ROOT = Path(airflow_provider_exactlyonce.__file__).parent

AIRFLOW_HALF = ("operators", "sensors", "triggers", "hooks", "links", "assets")
RUNTIME_HALF = (
    "streaming",
    "kafka",
    "ledger",
    "control",
    "checkpoint",
    "devkit",
    "audit",
    "transactions",
    "doctor",
    "upgrade",
    "state",
    "backfill",
    "testing",
)
HEAVY = ("pyspark", "confluent_kafka", "kafka")

#: What each part may import of the others; everybody may import the plain modules at the top (exceptions and so on).
BELOW: dict[str, set[str]] = {
    "operators": {
        "links",
        "triggers",
        "hooks",
        "control",
        "ledger",
        "checkpoint",
        "audit",
        "upgrade",
        "backfill",
        "streaming.settings",
    },
    "sensors": {"triggers", "hooks", "ledger", "control", "transactions"},
    "triggers": {"hooks", "ledger", "control", "transactions"},
    "hooks": {"control", "ledger", "checkpoint", "streaming.settings", "devkit"},
    "links": {"control"},
    "assets": {"triggers", "ledger"},
    "transactions": {"control", "ledger", "kafka"},
    "streaming": {"control", "ledger", "checkpoint", "kafka", "state", "backfill"},
    "testing": {"streaming"},
    "state": set(),
    "backfill": {"control", "ledger", "checkpoint", "kafka", "streaming.settings"},
    "audit": {"ledger", "kafka"},
    "upgrade": {"control", "ledger", "checkpoint", "kafka", "audit", "streaming"},
    "doctor": {"control", "ledger", "checkpoint", "kafka", "audit", "transactions", "streaming.start_checks"},
    "checkpoint": {"control", "ledger", "kafka"},
    "ledger": {"kafka"},
    "control": set(),
    "kafka": set(),
    "devkit": set(),
}
#: Modules at the top of the package that everybody may import; they import each other only.
PLAIN = {"answers", "codec", "exceptions", "failpoints", "health", "pages", "restart", "until"}
#: Modules at the top that nobody imports.
ENTRIES = {"cli", "get_provider_info"}


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def part_of(file: Path) -> str:
    relative = file.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names that a tree imports, ``from a import b`` as ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_module_level(tree: ast.Module) -> ast.Module:
    """Return the tree without function bodies and without ``if TYPE_CHECKING``."""

    class Prune(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
            return None

        def visit_If(self, node: ast.If) -> ast.AST | None:
            return None if "TYPE_CHECKING" in ast.unparse(node.test) else self.generic_visit(node)

    pruned = Prune().visit(ast.parse(ast.unparse(tree)))
    assert isinstance(pruned, ast.Module)
    return pruned


def top(name: str) -> str:
    return name.partition(".")[0]


@pytest.mark.parametrize("file", [file for file in modules() if part_of(file) in RUNTIME_HALF], ids=str)
def test_the_runtime_half_imports_no_airflow(file: Path) -> None:
    assert "airflow" not in {top(name) for name in imported(ast.parse(file.read_text()))}


@pytest.mark.parametrize("file", [file for file in modules() if part_of(file) in AIRFLOW_HALF], ids=str)
def test_the_airflow_half_imports_no_spark_and_no_kafka_client_at_module_level(file: Path) -> None:
    found = {top(name) for name in imported(at_module_level(ast.parse(file.read_text())))}
    assert found.isdisjoint(HEAVY)


@pytest.mark.parametrize("file", [file for file in modules() if part_of(file) in BELOW], ids=str)
def test_dependencies_point_downwards_only(file: Path) -> None:
    part = part_of(file)
    for name in imported(ast.parse(file.read_text())):
        if top(name) != PACKAGE:
            continue
        inner = name.removeprefix(f"{PACKAGE}.")
        allowed = {part} | BELOW[part] | PLAIN
        assert any(inner == one or inner.startswith(f"{one}.") for one in allowed), f"{part} imports {inner}"


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_plain_modules_import_plain_modules_only(name: str) -> None:
    for used in imported(ast.parse((ROOT / f"{name}.py").read_text())):
        if top(used) == PACKAGE:
            assert used.split(".")[1] in PLAIN


def test_every_part_of_the_package_has_a_rule() -> None:
    parts = {part_of(file) for file in modules()}
    assert parts <= set(BELOW) | PLAIN | ENTRIES | {"__init__"}


def names_of(parts: tuple[str, ...]) -> list[str]:
    files = [file for file in modules() if part_of(file) in parts and file.stem not in ("__init__", "__main__")]
    return [f"{PACKAGE}." + ".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]


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
    cost = ([], imports)
    rule = (list(HEAVY), names_of(AIRFLOW_HALF))
    airflows, *ours = seconds_to_import(tmp_path, ["airflow.sdk"], [cost, cost, cost, cost, cost, rule])
    assert statistics.median(ours[:5]) < airflows / 10, (airflows, ours)
