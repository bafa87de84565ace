from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.exceptions import UnknownPipelineError
from airflow_provider_exactlyonce.hooks import home as homes
from airflow_provider_exactlyonce.triggers.pipeline_state import StateChecker
from airflow_provider_exactlyonce.triggers.shared_poller import subscribed
from tests.waiting import HANG_SECONDS


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


def test_a_home_that_does_not_answer_delays_nobody_who_waits_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def find(conn_id: str, *, pipeline: str | None, checkpoint: str | None) -> None:
        if checkpoint is not None:
            answers.wait(HANG_SECONDS)
            raise OSError("no answer")
        raise UnknownPipelineError(str(pipeline))

    monkeypatch.setattr(homes, "find", find)

    async def wait() -> Any:
        dead = {"pipeline": None, "checkpoint": "s3://aws_default@dead/shop", "states": ["running"]}
        shop = {"pipeline": "shop", "checkpoint": None, "states": ["absent"]}
        async with (
            subscribed(StateChecker, "kafka_default", dead, 1.0),
            subscribed(StateChecker, "kafka_default", shop, 1.0) as waiting,
        ):
            news = await waiting.changed(HANG_SECONDS)
            assert not answers.is_set()
            answers.set()
            return news

    assert asyncio.run(wait()).found == {"pipeline": "shop", "state": "absent", "run": 0, "commit": 0}


def test_those_who_wait_for_one_home_are_looked_at_together() -> None:
    shop = {"pipeline": "shop", "checkpoint": None}
    groups = [StateChecker.group_of({**shop, "states": states}) for states in (["running"], ["absent"])]
    assert len(set(groups)) == 1
    assert StateChecker.group_of({"pipeline": None, "checkpoint": "shop", "states": ["running"]}) not in groups
