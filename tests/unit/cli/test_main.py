"""How a command ends that fails."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_provider_exactlyonce.checkpoint import request
from airflow_provider_exactlyonce.cli import main as cli
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.kafka import reach


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (None, "ExactlyOnceError: Kafka at a:1 says: no right to describe it. The command may be tried again"),
        (ExactlyOnceError("Kafka at a:1 can't be reached: refused"), "ExactlyOnceError: Kafka at a:1 can't be reached"),
        (RefusedError("Kafka at a:1 can't be reached: who are you"), "RefusedError: Kafka at a:1 can't be reached"),
    ],
)
def test_what_kafka_says_in_the_middle_of_a_command_is_told_in_a_sentence(
    trouble: ExactlyOnceError | None,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def take(*_: object, **__: object) -> NoReturn:
        raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "no right to describe it"))

    home = Home(tmp_path / "home")
    home.create("shop")
    monkeypatch.setattr(request, "take", take)
    monkeypatch.setattr(reach, "trouble", lambda config: trouble)
    code = cli.main(["savepoint", "shop", "--home", str(home.path), "--bootstrap-servers", "a:1"])
    assert code == (trouble or ExactlyOnceError()).exit_code
    assert capsys.readouterr().err.startswith(said)


def test_a_command_that_is_interrupted_ends_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def take(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    home = Home(tmp_path / "home")
    home.create("shop")
    monkeypatch.setattr(request, "take", take)
    assert cli.main(["savepoint", "shop", "--home", str(home.path), "--bootstrap-servers", "a:1"]) == 130
    assert capsys.readouterr().err == "interrupted. The command may be tried again\n"
