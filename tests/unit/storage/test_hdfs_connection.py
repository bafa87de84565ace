"""What a name node refuses, as everybody else here knows it."""

from __future__ import annotations

import concurrent.futures
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_exactlyonce.storage import hdfs_connection
from airflow_provider_exactlyonce.storage.hdfs_connection import HdfsConnection
from airflow_provider_exactlyonce.storage.store import is_no_answer
from tests.waiting import HANG_SECONDS

DENIED = "org.apache.hadoop.security.AccessControlException: Permission denied: user=a, access=WRITE, inode="


@pytest.mark.parametrize(
    ("said", "kind", "may_be_answered_later"),
    [
        (f'{DENIED}"/pipelines":hdfs:hdfs:drwxr-xr-x', PermissionError, False),
        (f"{DENIED}/pipelines/file (is not a directory)", FileNotFoundError, False),
        ("org.apache.hadoop.ipc.StandbyException: Operation category READ is not supported", OSError, True),
    ],
)
def test_what_the_client_has_no_error_for_is_one_that_is_known(
    said: str, kind: type[OSError], may_be_answered_later: bool
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError(f"{said}\\n\\tat org.apache.hadoop")

    with pytest.raises(kind) as raised:
        HdfsConnection("hdfs://nobody:1", {}).ask(refuse)
    assert (type(raised.value), str(raised.value)) == (kind, said)
    assert is_no_answer(raised.value) is may_be_answered_later


class Panic(BaseException):
    """What the client raises when its Rust panics: no exception that anybody who goes on after one catches."""


def test_a_panic_of_the_client_is_no_answer() -> None:
    panic = Panic("called `Option::unwrap()` on a `None` value")

    def fail(_: object) -> None:
        raise panic

    with pytest.raises(OSError, match=r"called `Option::unwrap\(\)` on a `None` value") as raised:
        HdfsConnection("hdfs://nobody:1", {}).ask(fail)
    assert is_no_answer(raised.value)
    assert raised.value.__cause__ is not None
    assert raised.value.__cause__.__cause__ is panic


def test_an_answer_that_comes_while_this_process_is_stopped_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it wakes up, one step of its wait is over, however long it was stopped."""
    go, steps = threading.Event(), iter(range(20))

    def wait(answers: list[Future[int]], _: float) -> Any:
        if next(steps) == 18:
            go.set()
            return concurrent.futures.wait(answers, HANG_SECONDS)
        return SimpleNamespace(done=set())

    monkeypatch.setattr(hdfs_connection, "wait", wait)
    connection = HdfsConnection("hdfs://nobody:1", {})
    assert connection.ask(lambda _: go.wait(HANG_SECONDS)) is True
    steps = iter(range(20, 40))
    with pytest.raises(OSError, match="has not answered for 20 s"):
        connection.ask(lambda _: 1)
    assert list(steps) == []


def test_a_thread_that_can_t_be_started_takes_no_place_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> Any:
        raise RuntimeError("can't start new thread")

    connection = HdfsConnection("hdfs://nobody:1", {})
    monkeypatch.setattr(hdfs_connection, "_threads", threading.BoundedSemaphore(1))
    with monkeypatch.context() as patched:
        patched.setattr(hdfs_connection, "threading", SimpleNamespace(Thread=refuse))
        for _ in range(2):
            with pytest.raises(OSError, match="can't start new thread"):
                connection.ask(lambda _: 1)
    assert connection.ask(lambda _: 1) == 1
