"""The JSON of metadata is that of all its members, also when some could not be encoded the time before."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel
from typing_extensions import override

from airflow_provider_exactlyonce.streaming.sinks.iceberg.sql_catalog import _GrowingJson


class Member(BaseModel):
    number: int


class FailingMember(Member):
    """Fails the first time that it is encoded."""

    has_failed: bool = False

    @override
    def model_dump_json(self, **how: object) -> str:
        if not self.has_failed:
            self.has_failed = True
            raise MemoryError
        return super().model_dump_json(exclude={"has_failed"})


def numbers(encoded: bytes) -> list[int]:
    return [member["number"] for member in json.loads(b"[" + encoded + b"]")]


def test_an_error_in_the_midst_loses_no_member() -> None:
    growing, before = _GrowingJson(), [Member(number=number) for number in range(3)]
    growing.encode(before)
    expired: list[BaseModel] = [*before[1:], FailingMember(number=3)]
    with pytest.raises(MemoryError):
        growing.encode(expired)
    grown = [*before, Member(number=4)]
    assert numbers(growing.encode(grown)) == [0, 1, 2, 4]
    assert numbers(growing.encode(expired)) == [1, 2, 3]


@pytest.mark.parametrize("members", [[], [0], [0, 1], [1, 2], [0, 1, 2, 3], [2, 1, 0], [0, 4, 2]])
def test_members_are_those_of_now(members: list[int]) -> None:
    every = [Member(number=number) for number in range(5)]
    growing = _GrowingJson()
    growing.encode(every[:3])
    assert numbers(growing.encode([every[number] for number in members])) == members
