"""How Ivy is called, with a JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.exceptions import MissingRequirementError
from airflow_provider_exactlyonce.jars import ivy


def test_a_mirror_is_taken_from_the_settings_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ivy.SETTINGS_VARIABLE, "/etc/ivysettings.xml")
    assert ivy._command(tmp_path, tmp_path)[-2:] == ["-settings", "/etc/ivysettings.xml"]
    monkeypatch.delenv(ivy.SETTINGS_VARIABLE)
    assert "-settings" not in ivy._command(tmp_path, tmp_path)


def test_a_resolution_that_fails_for_another_reason_shows_the_end_of_ivys_output(tmp_path: Path) -> None:
    broken = tmp_path / "broken.xml"
    broken.write_text("<ivy-module")
    with pytest.raises(MissingRequirementError, match=r"(?s)Ivy could not resolve.*broken\.xml"):
        ivy.retrieve(tmp_path, tmp_path / "ivy", print, dependencies=broken)
