"""The page of concepts names all that users import and call, and nothing else."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.sdk import BaseOperator, BaseSensorOperator
from airflow.triggers.base import BaseTrigger

import airflow_provider_exactlyonce
from airflow_provider_exactlyonce.cli.main import main
from tests.unit.test_site import conf

PACKAGE = airflow_provider_exactlyonce.__name__
FOLDER = Path(airflow_provider_exactlyonce.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs/concepts.md").read_text()


def named() -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each class and function in the page's table."""
    for names in conf.public_names().values():
        yield from names


def exported() -> Iterator[tuple[str, str]]:
    """Yield the module and the name of what the package offers to users."""
    for room in ("streaming", "state", "testing"):
        for name in importlib.import_module(f"{PACKAGE}.{room}").__all__:
            yield room, name
    for room, base in (("operators", BaseOperator), ("sensors", BaseSensorOperator), ("triggers", BaseTrigger)):
        for file in sorted((FOLDER / room).glob("[a-z]*.py")):
            module = importlib.import_module(f"{PACKAGE}.{room}.{file.stem}")
            for name, value in vars(module).items():
                is_of_room = inspect.isclass(value) and value.__module__ == module.__name__ and issubclass(value, base)
                if is_of_room and not name.startswith(("_", "Polling")):  # those are bases
                    yield f"{room}.{file.stem}", name


def shown() -> Iterator[str]:
    """Yield the names that the pages and the example DAGs import, from whichever module."""
    docs, dags = (Path(__file__).parents[2] / folder for folder in ("docs", "dags"))
    for file in (*sorted(docs.glob("*.md")), *sorted(dags.rglob("*.py"))):
        for module, names in re.findall(rf"from {PACKAGE}\.([\w.]+) import (\([^)]*\)|[^\n]+)", file.read_text()):
            if module != "exceptions":  # which have a page of their own
                yield from re.findall(r"(?<!as )\b\w+", names)


def test_every_public_class_is_named() -> None:
    known = set(named())
    assert [f"{module}.{name}" for module, name in exported() if (module, name) not in known] == []
    assert set(shown()) <= {name for _, name in known}


def test_what_is_named_can_be_imported_from_there() -> None:
    names = list(named())
    assert len(names) > 60
    for module, name in names:
        assert hasattr(importlib.import_module(f"{PACKAGE}.{module}"), name), f"{module}.{name}"


def test_no_other_class_is_named() -> None:
    words = set(re.findall(r"`([A-Z][a-z]\w*[A-Z]\w*)", PAGE))
    assert words <= {name for _, name in named()}


def test_every_command_is_named_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    commands = re.findall(r"^ {4}([a-z][a-z-]*)", capsys.readouterr().out, re.MULTILINE)
    assert "audit-sinks" in commands
    assert sorted(re.findall(r"`exactlyonce ([a-z-]+)`", PAGE)) == sorted(commands)


def test_every_concept_is_defined_once_and_says_where_more_is() -> None:
    words = PAGE.split("## Classes and functions")[0].split("\n### ")[1:]
    titles = [word.splitlines()[0] for word in words]
    assert len(titles) == len(set(titles)) > 40
    assert [word.splitlines()[0] for word in words if "→" not in word] == []
