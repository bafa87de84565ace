from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.hooks import home as homes
from airflow_provider_exactlyonce.triggers.pipeline_state import StateChecker


def test_a_home_that_can_t_be_read_is_no_matter_of_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(conn_id: str, **_: object) -> None:
        raise OSError("s3://bucket/shop: The specified bucket does not exist")

    monkeypatch.setattr(homes, "find", fail)
    checker = StateChecker("kafka_default")
    subject = {"pipeline": None, "checkpoint": "s3://aws_default@bucket/shop", "states": ["running"]}
    answer = checker.check({"a": subject}, diagnose=False)["a"]
    assert not isinstance(answer, Exception)
    assert answer.missing == "home: s3://bucket/shop: The specified bucket does not exist"
