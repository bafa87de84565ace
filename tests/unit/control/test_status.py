"""The driver's account of itself, as others read it."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_exactlyonce.control import json_store, status
from airflow_provider_exactlyonce.control.status import DriverError, DriverState, Status


def test_what_a_newer_release_says_besides_is_passed_over(tmp_path: Path) -> None:
    error = DriverError(kind="DataError", decision="fix_data", exit_code=67, message="no")
    written = Status(pipeline="p", token="t", state=DriverState.FAILED, commit=7, error=error)
    status.write(tmp_path / "status.json", written)
    body = json_store.read(tmp_path / "status.json")
    assert body is not None
    json_store.write(tmp_path / "status.json", {**body, "mood": "good"})
    assert status.read(tmp_path / "status.json") == written
