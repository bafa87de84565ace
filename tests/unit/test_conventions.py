"""What Airflow's people expect of every operator and sensor, and how large a class or a function may be."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest
from airflow.sdk import BaseOperator, BaseSensorOperator

import airflow_provider_exactlyonce

PACKAGE = airflow_provider_exactlyonce.__name__
ROOT = Path(airflow_provider_exactlyonce.__file__).parent
PARAMETER = re.compile(r":param (\w+):((?:(?!:param |:raises |:returns? |\.\. seealso).)*)", re.DOTALL)
#: The connection types of the Spark, Kafka and Postgres providers; there is none of our own.
CONNECTIONS = {
    "conn_id": "spark",
    "kafka_conn_id": "kafka",
    "postgres_conn_id": "postgres",
    "schema_registry_conn_id": "schema_registry",
}


def task_classes() -> list[type[BaseOperator]]:
    """Return all public operators and sensors, abstract ones left out."""
    classes = []
    for kind in ("operators", "sensors"):
        for file in sorted((ROOT / kind).glob("*.py")):
            module = importlib.import_module(f"{PACKAGE}.{kind}.{file.stem}".removesuffix(".__init__"))
            for name, member in vars(module).items():
                is_task = (
                    inspect.isclass(member) and issubclass(member, BaseOperator) and not inspect.isabstract(member)
                )
                if is_task and member.__module__ == module.__name__ and not name.startswith("_"):
                    classes.append(member)
    return classes


CLASSES = task_classes()
all_of_them = pytest.mark.parametrize("task_class", CLASSES, ids=lambda task_class: task_class.__name__)


def parameters(task_class: type[BaseOperator]) -> dict[str, inspect.Parameter]:
    """Return what the constructors of our classes take, Airflow's own arguments left out."""
    ours = [base for base in task_class.__mro__ if base.__module__.startswith(PACKAGE) and "__init__" in vars(base)]
    return {
        name: parameter
        for base in reversed(ours)
        for name, parameter in inspect.signature(inspect.unwrap(base.__init__)).parameters.items()  # type: ignore[misc]
        if name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }


def documented(task_class: type[BaseOperator]) -> dict[str, str]:
    return {
        name: " ".join(text.split()) for name, text in PARAMETER.findall(inspect.cleandoc(task_class.__doc__ or ""))
    }


def test_there_are_operators_and_sensors() -> None:
    names = {task_class.__name__ for task_class in CLASSES}
    assert {"StreamingPipelineOperator", "StopPipelineOperator", "CommitGateSensor"} <= names


@all_of_them
def test_every_argument_is_documented_and_no_other(task_class: type[BaseOperator]) -> None:
    own = documented(task_class)
    assert all(own.values()), "none is left without a word"
    airflows_own = {"poke_interval", "timeout", "mode"} if issubclass(task_class, BaseSensorOperator) else set()
    assert set(own) - airflows_own == set(parameters(task_class)) - airflows_own


@all_of_them
def test_every_argument_is_given_by_its_name(task_class: type[BaseOperator]) -> None:
    assert {parameter.kind for parameter in parameters(task_class).values()} <= {inspect.Parameter.KEYWORD_ONLY}


@all_of_them
def test_what_is_said_to_be_templated_is_and_nothing_else(task_class: type[BaseOperator]) -> None:
    said = {name for name, text in documented(task_class).items() if "(templated)" in text}
    # Airflow has a label of its own, so that argument is kept under another name.
    fields = {
        name.removeprefix("savepoint_") if name == "savepoint_label" else name for name in task_class.template_fields
    }
    assert said == fields & set(parameters(task_class))
    assert fields <= set(parameters(task_class)), "a field is an argument"
    assert set(task_class.template_fields_renderers) <= set(task_class.template_fields)


@all_of_them
def test_connections_are_named_as_in_airflows_providers(task_class: type[BaseOperator]) -> None:
    named = {name: parameter.default for name, parameter in parameters(task_class).items() if name.endswith("conn_id")}
    for name, default in named.items():
        assert name in CONNECTIONS
        assert default in (f"{CONNECTIONS[name]}_default", None)
        assert name in task_class.template_fields


def test_the_provider_declares_no_connection_type_of_its_own() -> None:
    from airflow_provider_exactlyonce.get_provider_info import get_provider_info

    assert "connection-types" not in get_provider_info()


def test_every_sensor_can_wait_in_the_triggerer() -> None:
    sensors = [task_class for task_class in CLASSES if issubclass(task_class, BaseSensorOperator)]
    assert [sensor.__name__ for sensor in sensors if "deferrable" not in parameters(sensor)] == []


METHODS_MAXIMUM, ARGUMENTS_MAXIMUM, LINES_MAXIMUM = 15, 7, 70
#: What Airflow, or pytest, makes of a class; a user's declaration is a frozen dataclass and so needs no exception.
FREE_ROOMS = {"operators", "sensors", "triggers"}
FREE_CLASSES = {"SinkConformance"}


def too_much(declared: ast.ClassDef) -> str | None:
    """Return what of a class is more than a reader can hold, None when nothing is."""
    functions = [function for function in declared.body if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)]
    public = {function.name for function in functions if not function.name.startswith("_")}
    if len(public) > METHODS_MAXIMUM:
        return f"{len(public)} public methods"
    arguments = [
        len([*function.args.args, *function.args.kwonlyargs]) - 1
        for function in functions
        if function.name == "__init__"
    ]
    for decorator in map(ast.unparse, declared.decorator_list):
        if decorator.startswith("dataclass") and "frozen=True" not in decorator:
            fields = [field for field in declared.body if isinstance(field, ast.AnnAssign)]
            arguments.append(sum("init=False" not in ast.unparse(field) for field in fields))
    return f"{max(arguments)} arguments" if arguments and max(arguments) > ARGUMENTS_MAXIMUM else None


def test_a_class_name_says_one_thing() -> None:
    """Two sinks may have a class of one name for one role."""
    where: dict[str, set[str]] = {}
    for file in ROOT.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, set()).add(str(file.relative_to(ROOT).parent))
    more_than_one = {name for name, rooms in where.items() if len(rooms) > 1}
    assert more_than_one == {"SinkLedger", "TableFormat", "RowsOfPartitions", "UpsertWriter", "OpenUpsertWriter"}


def test_no_class_has_more_than_a_reader_can_hold() -> None:
    too_large = {
        declared.name: much
        for file in ROOT.rglob("*.py")
        if file.relative_to(ROOT).parts[0] not in FREE_ROOMS
        for declared in ast.walk(ast.parse(file.read_text()))
        if isinstance(declared, ast.ClassDef)
        and declared.name not in FREE_CLASSES
        and (much := too_much(declared)) is not None
    }
    assert too_large == {}


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many lines a function has, its docstring left out."""
    first = function.body[1] if ast.get_docstring(function) and len(function.body) > 1 else function.body[0]
    return (function.end_lineno or 0) - first.lineno + 1 + function.body[0].lineno - function.lineno


def test_no_function_has_more_than_a_reader_can_hold() -> None:
    too_long = {
        function.name: lines
        for file in ROOT.rglob("*.py")
        for function in ast.walk(ast.parse(file.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := lines_of(function)) > LINES_MAXIMUM
    }
    assert too_long == {}
