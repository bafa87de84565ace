"""Names of 0.1 that users may have imported work, and say where they are now."""

from __future__ import annotations

import importlib

import pytest

PACKAGE = "airflow_provider_exactlyonce"


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("until", "policies.termination", "Commits"),
        ("until", "policies.termination", "Watermark"),
        ("restart", "policies.restart_strategy", "RestartStrategy"),
        ("health", "policies.health_rules", "HealthRules"),
        ("streaming.sinks.conformance", "testing.sink_conformance", "SinkConformance"),
    ],
)
def test_an_old_name_is_the_new_one_and_warns(old: str, new: str, name: str) -> None:
    expected = getattr(importlib.import_module(f"{PACKAGE}.{new}"), name)
    with pytest.warns(DeprecationWarning, match=rf"{old}\.{name} is {PACKAGE}\.{new}\.{name} now"):
        assert getattr(importlib.import_module(f"{PACKAGE}.{old}"), name) is expected


def test_what_never_was_there_is_no_old_name() -> None:
    assert not hasattr(importlib.import_module(f"{PACKAGE}.until"), "Sometime")
