"""The page of concepts names all that users import and call, and nothing else."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from airflow.sdk import BaseOperator, BaseOperatorLink, BaseSensorOperator
from airflow.triggers.base import BaseTrigger

import airflow_provider_exactlyonce
from airflow_provider_exactlyonce.cli.main import main
from tests.unit.test_docs import error_classes
from tests.unit.test_site import conf

PACKAGE = airflow_provider_exactlyonce.__name__
FOLDER = Path(airflow_provider_exactlyonce.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs/concepts.md").read_text()
#: What Airflow looks for in the modules of a room; whatever else they have is their own.
AIRFLOWS: Mapping[str, type] = {
    "operators": BaseOperator,
    "sensors": BaseSensorOperator,
    "triggers": BaseTrigger,
    "links": BaseOperatorLink,
}


def named() -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each class and function in the page's table."""
    for names in conf.public_names().values():
        yield from names


def classes_of(module: str) -> Iterator[type]:
    """Yield the public classes that a module defines."""
    loaded = importlib.import_module(f"{PACKAGE}.{module}")
    for name, value in vars(loaded).items():
        if inspect.isclass(value) and value.__module__ == loaded.__name__ and not name.startswith("_"):
            yield value


def exported() -> Iterator[tuple[str, str]]:
    """Yield the module and the name of what the package offers to users."""
    for room in ("streaming", "state", "testing"):
        for name in importlib.import_module(f"{PACKAGE}.{room}").__all__:
            yield room, name
    for room, base in AIRFLOWS.items():
        for file in sorted((FOLDER / room).glob("[a-z]*.py")):
            for value in classes_of(f"{room}.{file.stem}"):
                if issubclass(value, base):
                    yield f"{room}.{file.stem}", value.__name__


def shown() -> Iterator[str]:
    """Yield the names that the pages and the example DAGs import, from whichever module."""
    docs, dags = (Path(__file__).parents[2] / folder for folder in ("docs", "dags"))
    for file in (*sorted(docs.glob("*.md")), *sorted(dags.rglob("*.py"))):
        for module, names in re.findall(rf"from {PACKAGE}\.([\w.]+) import (\([^)]*\)|[^\n]+)", file.read_text()):
            if module != "exceptions":  # which have a page of their own
                yield from re.findall(r"(?<!as )\b\w+", names)


def commands(capsys: pytest.CaptureFixture[str], *path: str) -> Iterator[str]:
    """Yield each command, and of one that has others below it only those."""
    with pytest.raises(SystemExit):
        main([*path, "--help"])
    text = capsys.readouterr().out
    if path and "COMMAND ..." not in text:
        yield " ".join(path)
        return
    for name in re.findall(r"^ {4}([a-z][a-z-]*)", text, re.MULTILINE):
        yield from commands(capsys, *path, name)


def test_every_public_class_is_named() -> None:
    known = set(named())
    assert [f"{module}.{name}" for module, name in exported() if (module, name) not in known] == []
    assert set(shown()) <= {name for _, name in known}


def test_what_a_named_module_has_beside_it_and_what_it_is_derived_from_is_named() -> None:
    values = {getattr(importlib.import_module(f"{PACKAGE}.{module}"), name) for module, name in named()}
    modules = {module for module, _ in named() if module.partition(".")[0] not in AIRFLOWS}
    beside = {value for module in modules for value in classes_of(module)} - set(error_classes())
    bases = {base for value in values if inspect.isclass(value) for base in inspect.getmro(value)}
    ours = {base for base in bases if re.fullmatch(rf"{PACKAGE}(\.[a-z]\w*)+", base.__module__)}
    assert {value for value in (beside | ours) - values if not value.__name__.startswith("_")} == set()


def test_what_is_named_can_be_imported_from_there() -> None:
    names = list(named())
    assert len(names) > 60
    for module, name in names:
        assert hasattr(importlib.import_module(f"{PACKAGE}.{module}"), name), f"{module}.{name}"


def test_no_other_class_is_named() -> None:
    words = set(re.findall(r"`([A-Z][a-z]\w*[A-Z]\w*)", PAGE))
    assert words <= {name for _, name in named()} | {error.__name__ for error in error_classes()}


def test_every_error_is_named_beside_its_exit_code() -> None:
    rows = re.findall(r"^\| (\d+)[^|]* \|.*\| (\[`.*) \|$", PAGE.split("## Errors")[1], re.MULTILINE)
    codes = {name: int(code) for code, names in rows for name in re.findall(r"`(\w+)`", names)}
    assert codes == {error.__name__: error.exit_code for error in error_classes()}


def test_every_command_is_named_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    there = sorted(commands(capsys))
    assert {"audit-sinks", "savepoint clean-up", "home copy"} <= set(there)
    assert sorted(re.findall(r"`exactlyonce ([a-z-]+(?: [a-z-]+)*)`", PAGE)) == there


def test_every_concept_is_defined_once_and_says_where_more_is() -> None:
    words = PAGE.split("## Classes and functions")[0].split("\n### ")[1:]
    titles = [word.splitlines()[0] for word in words]
    assert len(titles) == len(set(titles)) > 40
    assert [word.splitlines()[0] for word in words if "→" not in word] == []
