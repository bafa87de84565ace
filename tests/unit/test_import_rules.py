"""Who may import whom, and what an import costs: read from the source, and tried in a process of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import airflow_provider_exactlyonce
from airflow_provider_exactlyonce import streaming
from tests import rooms
from tests.rooms import ENTRIES, PLAIN, ROOMS

PACKAGE = "airflow_provider_exactlyonce"
ROOT = Path(airflow_provider_exactlyonce.__file__).parent

AIRFLOW_HALF = ("operators", "sensors", "triggers", "hooks", "links", "assets")
#: Of a path of universal_pathlib: some take no answer for a no, others leave out what they can't list.
GUESSING = {"exists", "is_dir", "is_file", "iterdir", "glob", "rglob", "walk"}
HEAVY = ("pyspark", "confluent_kafka", "kafka")


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def name_of(file: Path) -> str:
    """Return a module's dotted name without the package's; that of a package is its folder's."""
    relative = file.relative_to(ROOT)
    return ".".join((relative.parent if file.stem == "__init__" else relative.with_suffix("")).parts)


def room_of(name: str) -> str:
    """Return the narrowest room that a module is in; a plain one is its own."""
    parts = name.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((room for room in names if room in ROOMS), parts[0])


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names that a tree imports, ``from a import b`` as ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def arrows() -> dict[str, set[str]]:
    """Return {module: the modules of this package that it imports}, in functions and for type checking, too."""
    names = {name_of(file): file for file in modules()}

    def module(name: str) -> str:
        inner = name.removeprefix(f"{PACKAGE}.")
        return inner if inner in names else inner.rpartition(".")[0]

    return {
        name: {
            module(imported_name)
            for imported_name in imported(ast.parse(file.read_text()))
            if imported_name.startswith(f"{PACKAGE}.")
        }
        - {name}
        for name, file in names.items()
    }


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


def test_the_runtime_half_imports_no_airflow() -> None:
    importing = {
        top(name_of(file))
        for file in modules()
        if "airflow" in {top(name) for name in imported(ast.parse(file.read_text()))}
    }
    assert importing <= {*AIRFLOW_HALF, "get_provider_info"}


def test_the_airflow_half_imports_no_spark_and_no_kafka_client_at_module_level() -> None:
    forbidden = {
        f"{file} imports {name}"
        for file in modules()
        if top(name_of(file)) in AIRFLOW_HALF
        for name in imported(at_module_level(ast.parse(file.read_text())))
        if top(name) in HEAVY
    }
    assert forbidden == set()


def test_dependencies_point_downwards_only() -> None:
    upwards = {
        f"{name} imports {target}"
        for name, imports in arrows().items()
        for target in imports
        if name not in ("", *ENTRIES) and room_of(target) not in {room_of(name), *ROOMS.get(room_of(name), ()), *PLAIN}
    }
    assert upwards == set()


def test_no_rule_allows_what_nobody_needs() -> None:
    used = {(room_of(name), room_of(target)) for name, imports in arrows().items() for target in imports}
    assert {
        f"{room} may import {lower}" for room, below in ROOMS.items() for lower in below if (room, lower) not in used
    } == set()


def test_no_modules_and_no_rooms_import_each_other_in_a_circle() -> None:
    list(TopologicalSorter(arrows()).static_order())
    list(TopologicalSorter(ROOMS).static_order())


def test_the_page_of_the_architecture_is_made_from_the_rules() -> None:
    assert rooms.table() in rooms.PAGE.read_text(), "python -m tests.rooms draws it anew"
    assert rooms.picture() == rooms.PICTURE.read_text(), "python -m tests.rooms draws it anew"


def docstrings() -> dict[str, str]:
    """Return what each room and the package itself say of themselves, by their names."""
    files = ROOT.rglob("__init__.py")
    return {name_of(file): ast.get_docstring(ast.parse(file.read_text())) or "" for file in files}


def test_every_room_says_what_is_in_it_what_is_not_and_who_calls() -> None:
    lengths = {room: sum(map(bool, text.splitlines())) for room, text in docstrings().items()}
    assert {room: lines for room, lines in lengths.items() if not 2 <= lines <= 5} == {}


def test_a_room_names_only_modules_that_are_there_and_names_that_jobs_import() -> None:
    there = [f".{name}" for name in (*arrows(), *streaming.__all__, "exactlyonce")]
    named = {(room, name) for room, text in docstrings().items() for name in re.findall(r"``([a-z_.]+)``", text)}
    assert len(named) > 60
    assert [(room, name) for room, name in named if not any(one.endswith(f".{name}") for one in there)] == []


def test_every_part_of_the_package_has_a_rule() -> None:
    assert {room_of(name) for name in arrows()} <= set(ROOMS) | PLAIN | ENTRIES | {""}


def test_whether_something_is_in_a_home_is_asked_of_its_store() -> None:
    """Use ``store_of(place)``, or ``is_there``: they tell that the file system did not tell."""
    guesses = [
        f"{file.relative_to(ROOT)}:{node.lineno} {node.func.attr}"
        for room in ("backfill", "checkpoint", "control", "doctor")
        for file in sorted((ROOT / room).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in GUESSING
    ]
    assert guesses == []
