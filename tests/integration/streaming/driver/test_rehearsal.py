"""A standby's rehearsal in a driver's session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_exactlyonce.jars import class_training
from airflow_provider_exactlyonce.streaming.driver.rehearsal import rehearse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
def test_it_leaves_the_session_as_it_was(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    before = spark.conf.getAll
    rehearse(spark)
    assert spark.conf.getAll == before
    assert spark.streams.active == []
    own = [record.message for record in caplog.records if not record.name.startswith("py4j")]  # others may let it talk
    assert own == []


def test_one_that_fails_is_told_and_changes_nothing(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = spark.conf.getAll
    monkeypatch.setattr(class_training, "_SCHEMA", "id NONSENSE")
    rehearse(spark)
    assert spark.conf.getAll == before
    assert "the standby's rehearsal failed" in caplog.text
