"""The page of options names each option of a start, its default, and nothing else."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce.cli.arguments import SUBMISSION, declare
from airflow_provider_exactlyonce.cli.main import program
from airflow_provider_exactlyonce.hooks import packages
from airflow_provider_exactlyonce.operators._driver import DriverOperator
from airflow_provider_exactlyonce.operators.streaming import StreamingPipelineOperator
from airflow_provider_exactlyonce.streaming import pipeline, settings
from airflow_provider_exactlyonce.streaming.driver import options

PAGE = (Path(__file__).parents[2] / "docs/options.md").read_text()
NOT_GIVEN: Final[tuple[Any, ...]] = (None, (), [])


def rows(title: str) -> list[list[str]]:
    """Return the cells of the rows of a part's tables, without their heads."""
    part = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    heads = re.findall(r"^(\|.*\|)\n\|---", part, re.MULTILINE)
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines if line not in heads]


def shown(default: Any) -> str:
    """Return how the page shows a default that says something by itself."""
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, timedelta):
        return f"{default.total_seconds():g} s"
    return f"`{default}`"


def fits(cell: str, default: Any, *, required: bool) -> bool:
    """Tell whether a cell shows a default; what none means is for the page to say."""
    if required or default in NOT_GIVEN:
        return (cell == "required") is required and cell != ""
    return cell.partition(",")[0] == shown(default)


def operator_rows() -> Mapping[str, str]:
    """Return the default of each parameter of the operator, as the page has it."""
    cells = [
        *(row[2:4] for row in rows("Options of the driver")),
        *(row[1:3] for row in rows("Connections")),
        *(row[:2] for row in rows("Supervision")),
    ]
    names = [name.strip("`") for name, _ in cells if name]
    assert len(names) == len(set(names))
    return {name.strip("`"): default for name, default in cells if name}


def test_every_option_of_the_command_has_a_row_with_its_default() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    declare(parser, *SUBMISSION)
    options.add_arguments(parser.add_argument)
    known = {action.option_strings[0]: action for action in parser._actions}
    command = program().commands["run"]
    assert known.keys() == {name for name in command._options() if name.startswith("--") and name != "--help"}
    written = {row[0].strip("`"): row[1] for row in rows("Options of the driver") if row[0].startswith("`--")}
    assert written.keys() == known.keys()
    wrong = {
        name: (written[name], action.default)
        for name, action in known.items()
        if not fits(written[name], action.default, required=action.required)
    }
    assert not wrong


def test_every_parameter_of_the_operator_has_a_row_with_its_default() -> None:
    parameters = {
        name: parameter
        for cls in (StreamingPipelineOperator, DriverOperator)
        for name, parameter in inspect.signature(cls.__init__).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    written = operator_rows()
    assert written.keys() == parameters.keys()
    wrong = {
        name: (written[name], parameter.default)
        for name, parameter in parameters.items()
        if not fits(
            written[name],
            None if parameter.default is inspect.Parameter.empty else parameter.default,
            required=parameter.default is inspect.Parameter.empty,
        )
    }
    assert not wrong


def test_every_parameter_of_a_declaration_has_a_row_with_its_default() -> None:
    parameters = inspect.signature(pipeline).parameters
    written = {row[0].strip("`"): row[1].strip("`") for row in rows("What a job declares")}
    assert written.keys() == parameters.keys()
    wrong = {
        name: (written[name], parameter.default)
        for name, parameter in parameters.items()
        if (written[name] == "required") is not (parameter.default is inspect.Parameter.empty)
        or (isinstance(parameter.default, bool | str) and written[name] != shown(parameter.default).strip("`"))
    }
    assert not wrong


def test_the_parameters_that_may_be_templates_are_named() -> None:
    named = PAGE.split("These parameters may be templates: ")[1].split(".")[0]
    assert set(re.findall(r"`(\w+)`", named)) == set(StreamingPipelineOperator.template_fields)


def test_the_spark_settings_are_those_of_the_code() -> None:
    written = {row[0].strip("`"): row[1].strip("`") for row in rows("Spark settings")}
    own = {settings.SEQUENCER_HOST, settings.SEQUENCER_BIND_ADDRESS, settings.SEQUENCER_PORT, packages.PACKAGES}
    required = {name: value for name, (value, _) in settings.REQUIRED.items()}
    assert {name: value for name, value in written.items() if name not in own} == {**required, **settings.DEFAULTS}
    assert own <= written.keys()
