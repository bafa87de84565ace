"""The driver's side of savepoints, with a checkpoint that is there and no query."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.checkpoint import job as jobs
from airflow_provider_exactlyonce.checkpoint.savepoints import SavepointRetention, Savepoints
from airflow_provider_exactlyonce.control import requests
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.requests import SavepointAnswer, SavepointRequest
from airflow_provider_exactlyonce.storage.store import OutcomeUnknownError
from airflow_provider_exactlyonce.streaming.driver.savepoint_service import SavepointService
from tests.clocks import Rounds
from tests.unit.checkpoint import crafted

TOKEN = "t"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    crafted.checkpoint(home.checkpoint(crafted.LINEAGE))
    return home


def service(home: Home) -> SavepointService:
    return SavepointService(
        home,
        crafted.LINEAGE,
        TOKEN,
        retention=SavepointRetention(count=2, days=0),
        batch_of=lambda record: record.batch if record.lineage == crafted.LINEAGE else None,
    )


def in_rounds(serving: SavepointService, monkeypatch: pytest.MonkeyPatch) -> Rounds:
    """Let a driver look for requests when the test says so."""
    rounds = Rounds()
    monkeypatch.setattr(serving, "_ended", rounds)
    return rounds


def ask(home: Home, request: str, *, stop: bool = False, token: str = TOKEN) -> None:
    requests.request_savepoint(home, SavepointRequest(request=request, token=token, label="x", stop=stop))


def saved_at(home: Home, request: str) -> int | None:
    """Return the commit of the savepoint that a request was answered with, None for no answer yet."""
    answer = requests.savepoint_answer(home, request)
    if answer is None:
        return None
    assert answer.savepoint is not None, answer.error
    assert answer.savepoint.endswith(f"-{request}")
    return Savepoints(home.savepoints).get(answer.savepoint).commit


def test_a_request_is_answered_with_the_newest_batch_that_spark_and_the_ledger_have(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = service(home)
    rounds = in_rounds(serving, monkeypatch)
    ask(home, "aa")
    serving.start(None)
    rounds.look()
    assert requests.savepoint_answer(home, "aa") is None, "the ledger has nothing yet"
    for batch in (1, 2, 3):  # Spark has not recorded batch 3
        serving.committed(crafted.record(batch))
    serving.committed(replace(crafted.record(2), lineage="another"))
    rounds.look()
    assert saved_at(home, "aa") == 3
    assert requests.savepoint_requests(home, TOKEN) == []
    ask(home, "bb", token="another driver")
    serving.close(serve=True)
    assert requests.savepoint_answer(home, "bb") is None
    assert [savepoint.commit for savepoint in Savepoints(home.savepoints).list()] == [3]


def test_a_stop_is_a_reason_to_begin_no_batch_and_is_served_at_the_end(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = service(home)
    rounds = in_rounds(serving, monkeypatch)
    serving.start(crafted.record(2))
    assert serving.stop_reason() is None
    ask(home, "cc", stop=True)
    assert requests.stop_requested(home, TOKEN) is None
    rounds.look()
    assert "savepoint x was asked for" in (serving.stop_reason() or "")
    assert "savepoint x was asked for" in (requests.stop_requested(home, TOKEN) or ""), "supervisors see it"
    assert requests.savepoint_answer(home, "cc") is None, "not while the query runs"
    serving.close(serve=True)
    assert saved_at(home, "cc") == 3


def test_a_home_that_can_not_be_read_for_a_while_ends_no_service(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    serving = service(home)
    rounds = in_rounds(serving, monkeypatch)
    home.commands.parent.mkdir(parents=True, exist_ok=True)
    home.commands.symlink_to(home.commands)  # as unreadable for everybody, root too
    serving.start(crafted.record(2))
    rounds.look()
    home.commands.unlink()
    ask(home, "ab")
    rounds.look()
    assert saved_at(home, "ab") == 3
    serving.close(serve=False)


def unanswered(write: Callable[..., Any], times: int) -> Callable[..., Any]:
    """Make each call, and lose the answers of so many."""
    left = itertools.count(1)

    def lose(*args: Any, **kwargs: Any) -> Any:
        made = write(*args, **kwargs)
        if next(left) <= times:
            raise OutcomeUnknownError("no answer")
        return made

    return lose


def test_an_answer_and_a_clean_up_whose_outcome_is_unknown_end_no_service(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = service(home)
    rounds = in_rounds(serving, monkeypatch)
    monkeypatch.setattr(Savepoints, "clean_up", unanswered(Savepoints.clean_up, 2))
    monkeypatch.setattr(requests, "answer_savepoint", unanswered(requests.answer_savepoint, 1))
    serving.start(crafted.record(2))
    ask(home, "ab")
    rounds.look()
    assert saved_at(home, "ab") == 3
    ask(home, "ac")
    rounds.look()
    assert saved_at(home, "ac") == 3
    serving.close(serve=True)


@pytest.mark.parametrize("stop", [False, True])
def test_a_savepoint_of_which_nobody_knows_whether_it_was_taken_is_not_answered_with_an_error(
    home: Home, monkeypatch: pytest.MonkeyPatch, *, stop: bool
) -> None:
    serving = service(home)
    rounds = in_rounds(serving, monkeypatch)
    take = Savepoints.take
    monkeypatch.setattr(Savepoints, "take", unanswered(take, 1))
    serving.start(crafted.record(2))
    ask(home, "ad", stop=stop)
    rounds.look()
    monkeypatch.setattr(Savepoints, "take", take if not stop else unanswered(take, 1))
    rounds.look()
    serving.close(serve=True)
    assert [savepoint.commit for savepoint in Savepoints(home.savepoints).list()] == [3]
    assert saved_at(home, "ad") == (None if stop else 3)


def test_a_driver_that_fails_answers_nothing_so_that_whoever_asked_takes_it(home: Home) -> None:
    serving = service(home)
    serving.start(crafted.record(2))
    ask(home, "dd", stop=True)
    serving.close(serve=False)
    assert requests.savepoint_answer(home, "dd") is None
    assert [request.request for request in requests.savepoint_requests(home, TOKEN)] == ["dd"]


def test_what_cannot_be_saved_is_answered_with_the_reason_and_the_next_request_is_served(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = next(home.checkpoint(crafted.LINEAGE).glob("state/0/1/SSTs/000002-*"))
    aside = table.rename(home.path / "aside")
    serving = service(home)
    rounds = in_rounds(serving, monkeypatch)
    serving.start(crafted.record(2))
    ask(home, "ee")
    rounds.look()
    answer = requests.savepoint_answer(home, "ee")
    assert answer is not None
    assert f"{table.name} is missing" in (answer.error or "")
    shutil.move(aside, table)
    for request in ("f1", "f2", "f3"):
        ask(home, request)
    rounds.look()
    assert requests.savepoint_answer(home, "f3")
    serving.close(serve=True)
    assert len(Savepoints(home.savepoints).list()) == 2, "retention is kept after each"


def test_the_jobs_own_words_go_into_the_manifest(home: Home) -> None:
    job = jobs.JobDescription(
        version="abc",
        job_hash="hash",
        spark_version="4.2.0",
        output_mode="update",
        sources={"in": "k STRING"},
        sinks=("out",),
        result_schema="{}",
    )
    jobs.write(home, crafted.LINEAGE, job)
    assert jobs.read(home, crafted.LINEAGE, "abc") == job
    assert jobs.read(home, crafted.LINEAGE, "other") is None
    serving = service(home)
    serving.start(crafted.record(2))
    ask(home, "aa")
    serving.close(serve=True)
    (taken,) = Savepoints(home.savepoints).list()
    assert (taken.job_hash, taken.spark_version, taken.result_schema) == ("hash", "4.2.0", "{}")


def test_answers_that_nobody_has_come_back_for_are_forgotten(home: Home) -> None:
    for request in ("aa", "bb"):
        requests.answer_savepoint(home, request, SavepointAnswer(savepoint="1-x"))
    old = home.commands / "savepoint-aa.done.json"
    os.utime(old, (0, 0))
    requests.forget_savepoint(home, "cc")
    assert [file.name for file in home.commands.iterdir()] == ["savepoint-bb.done.json"]
