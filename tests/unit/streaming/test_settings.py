from __future__ import annotations

import uuid

import pytest

from airflow_provider_exactlyonce.exceptions import SettingRefusedError
from airflow_provider_exactlyonce.streaming import settings


def test_required_settings_and_defaults_complete_the_users() -> None:
    completed = settings.submit_settings({"spark.executor.memory": "2g"})
    assert completed["spark.executor.memory"] == "2g"
    assert completed["spark.task.maxFailures"] == "1"
    assert completed["spark.stage.maxConsecutiveAttempts"] == "1"
    assert completed["spark.speculation"] == "false"
    assert completed["spark.sql.streaming.stateStore.providerClass"].endswith("RocksDBStateStoreProvider")


def test_a_default_gives_way_to_the_user() -> None:
    assert settings.submit_settings({"spark.sql.session.timeZone": "CET"})["spark.sql.session.timeZone"] == "CET"


@pytest.mark.parametrize(
    ("name", "value", "required"),
    [
        ("spark.task.maxFailures", "4", "1"),
        ("spark.stage.maxConsecutiveAttempts", "4", "1"),
        ("spark.speculation", "true", "false"),
    ],
)
def test_a_setting_that_breaks_the_protocol_is_refused_by_name_and_value(name: str, value: str, required: str) -> None:
    with pytest.raises(SettingRefusedError, match=f"{name} is '{value}'; it must be '{required}'"):
        settings.submit_settings({name: value})


def test_a_session_without_a_required_setting_is_refused() -> None:
    with pytest.raises(SettingRefusedError, match=r"spark\.task\.maxFailures is not set; it must be '1'"):
        settings.check(dict[str, str]().get)


def test_values_are_compared_as_spark_reads_them() -> None:
    settings.check(
        {"spark.task.maxFailures": "1", "spark.stage.maxConsecutiveAttempts": " 1", "spark.speculation": "FALSE"}.get
    )


def test_a_socket_of_a_python_worker_has_a_path_that_fits() -> None:
    directory = settings.submit_settings({})["spark.python.unix.domain.socket.dir"]
    assert len(f"{directory}/.{uuid.uuid4()}.sock".encode()) <= 107
