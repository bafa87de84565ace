"""A savepoint of a pipeline that is stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.checkpoint import request
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from tests.unit.checkpoint import crafted


def test_of_what_a_reemit_restored_there_is_none_before_its_first_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    lineage = crafted.reemitting(home)
    ledger = crafted.reemitted()
    monkeypatch.setattr(request, "LedgerReader", lambda config, pipeline: ledger)
    with pytest.raises(RefusedError, match="take a savepoint after its first commit"):
        request.take(home, "p", {})
    home.remember(replace(lineage, base_batch=1))
    ledger.written.append(crafted.record(2, commit=21))
    assert request.take(home, "p", {}).commit == 21
