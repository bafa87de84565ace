"""The versions that the start checks are those that are sent."""

from __future__ import annotations

import ast
from pathlib import Path

from airflow_provider_exactlyonce.kafka import wire
from airflow_provider_exactlyonce.kafka.preflight import REQUESTS, missing_rights


def sent() -> dict[str, int]:
    """Return {request: max_version} of the calls in wire.py."""
    versions = {}
    for node in ast.walk(ast.parse(Path(wire.__file__).read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("Request"):
            for keyword in node.keywords:
                if keyword.arg == "max_version":
                    versions[node.func.id.removesuffix("Request")] = int(ast.literal_eval(keyword.value))
    return versions


def test_the_start_asks_for_the_versions_that_are_sent() -> None:
    assert sent() == {name: version for name, (_, version) in REQUESTS.items()}


def test_all_missing_rights_are_named_in_one_error_with_the_user() -> None:
    text = str(missing_rights("ann", ["WRITE on topic a", "READ on topic b"]))
    assert text.startswith("the Kafka user ann lacks the right WRITE on topic a, READ on topic b; grant")
    assert str(missing_rights(None, ["READ on topic b"])).startswith("the Kafka user lacks the right READ")
