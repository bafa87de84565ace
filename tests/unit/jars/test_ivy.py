"""How Ivy is called."""

from __future__ import annotations

import importlib.util

import pytest

from airflow_provider_exactlyonce.exceptions import MissingRequirementError
from airflow_provider_exactlyonce.jars import ivy


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, []),
        ({"no_proxy": "localhost"}, []),
        ({"HTTPS_PROXY": "http://gate:3128"}, ["-Dhttps.proxyHost=gate", "-Dhttps.proxyPort=3128"]),
        ({"https_proxy": "gate:3128"}, ["-Dhttps.proxyHost=gate", "-Dhttps.proxyPort=3128"]),
        ({"HTTP_PROXY": "http://gate"}, ["-Dhttp.proxyHost=gate", "-Dhttp.proxyPort=80"]),
        (
            {"HTTPS_PROXY": "http://gate:1", "NO_PROXY": "localhost, .inside"},
            ["-Dhttps.proxyHost=gate", "-Dhttps.proxyPort=1", "-Dhttp.nonProxyHosts=localhost|*.inside"],
        ),
    ],
)
def test_proxy_variables_become_system_properties(environment: dict[str, str], expected: list[str]) -> None:
    assert ivy.proxy_options(environment) == expected


def test_without_pyspark_it_says_which_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingRequirementError, match=r"pip install 'airflow-provider-exactlyonce\[spark\]'"):
        ivy.ivy_jar()
