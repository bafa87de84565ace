"""How durable documents become objects, beyond what the fixtures of older releases show."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from airflow_provider_exactlyonce import codec


@dataclass
class Document:
    number: int


def test_one_thread_converts_at_a_time_because_two_that_meet_a_class_first_crash_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    convert = msgspec.convert
    alone: list[bool] = []

    def noted(*arguments: Any, **options: Any) -> Any:
        alone.append(not codec._CONVERTING.acquire(blocking=False))
        return convert(*arguments, **options)

    monkeypatch.setattr(msgspec, "convert", noted)
    with ThreadPoolExecutor(4) as pool:
        loaded = pool.map(lambda number: codec.load(Document, {"number": number}, "it"), range(8))
        assert list(loaded) == [Document(number) for number in range(8)]
    assert alone == [True] * 8
