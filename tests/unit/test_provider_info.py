"""What the package tells Airflow about itself, checked by Airflow."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import tomllib
from pathlib import Path

import jsonschema
import pytest
from packaging.requirements import Requirement

from airflow_provider_exactlyonce.get_provider_info import get_provider_info

PACKAGE = "airflow_provider_exactlyonce"
ROOT = Path(__file__).parents[2]
KINDS = {"operators": "operators", "sensors": "sensors", "triggers": "triggers", "hooks": "hooks"}


def listed_modules(kind: str) -> list[str]:
    return [module for entry in get_provider_info()[kind] for module in entry["python-modules"]]


def test_it_validates_against_airflows_own_schema() -> None:
    import airflow

    schema = Path(airflow.__file__).parent / "provider_info.schema.json"
    jsonschema.validate(get_provider_info(), json.loads(schema.read_text()))


@pytest.mark.parametrize("kind", KINDS)
def test_every_module_is_listed_and_can_be_imported(kind: str) -> None:
    import airflow_provider_exactlyonce

    folder = Path(airflow_provider_exactlyonce.__file__).parent / kind
    present = sorted(f"{PACKAGE}.{kind}.{file.stem}" for file in folder.glob("[a-z]*.py"))
    assert sorted(listed_modules(kind)) == present
    for module in present:
        importlib.import_module(module)


def test_every_link_is_listed_and_is_a_link() -> None:
    from airflow_provider_exactlyonce.links import audit, pipeline, spark
    from airflow_provider_exactlyonce.links.pushed import PushedLink

    links = {member for module in (pipeline, spark) for member in vars(module).values() if inspect.isclass(member)}
    ours = [link for link in links if issubclass(link, PushedLink) and link is not PushedLink] + [audit.AuditReportLink]
    public = {f"{link.__module__}.{link.__name__}" for link in ours}
    assert set(get_provider_info()["extra-links"]) == public


def test_integrations_that_are_named_exist() -> None:
    info = get_provider_info()
    known = {integration["integration-name"] for integration in info["integrations"]}
    assert {entry["integration-name"] for kind in KINDS for entry in info[kind]} <= known


def test_the_entry_point_is_the_function() -> None:
    points = importlib.metadata.entry_points(group="apache_airflow_provider")
    [ours] = [point for point in points if point.value.startswith(PACKAGE)]
    assert ours.load() is get_provider_info


def test_who_installs_the_extra_for_postgresql_can_make_the_connection_that_the_operator_is_told() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "apache-airflow-providers-postgres" in {Requirement(requirement).name for requirement in extras["postgres"]}
    provider = importlib.import_module("airflow.providers.postgres.get_provider_info").get_provider_info()
    assert "postgres" in {connection_type["connection-type"] for connection_type in provider["connection-types"]}
