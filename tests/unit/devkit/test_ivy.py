"""How Ivy is called."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.devkit import ivy
from airflow_provider_exactlyonce.devkit.errors import DevkitError


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


def test_a_mirror_is_taken_from_the_settings_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ivy.SETTINGS_VARIABLE, "/etc/ivysettings.xml")
    assert ivy._command(tmp_path, tmp_path)[-2:] == ["-settings", "/etc/ivysettings.xml"]
    monkeypatch.delenv(ivy.SETTINGS_VARIABLE)
    assert "-settings" not in ivy._command(tmp_path, tmp_path)


def test_without_pyspark_it_says_which_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DevkitError, match=r"pip install 'airflow-provider-exactlyonce\[spark\]'"):
        ivy.ivy_jar()


def test_a_resolution_that_fails_for_another_reason_shows_the_end_of_ivys_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.xml"
    broken.write_text("<ivy-module")
    monkeypatch.setattr(ivy, "DEPENDENCIES", broken)
    with pytest.raises(DevkitError, match=r"(?s)Ivy could not resolve.*broken\.xml"):
        ivy.retrieve(tmp_path, tmp_path / "ivy", print)
