"""Which partition a row goes to that names one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from airflow_provider_exactlyonce.exceptions import RecordRefusedError
from airflow_provider_exactlyonce.streaming.commit.topic_routing import Router


def routed(*partitions: int | None) -> list[int]:
    rows = pa.RecordBatch.from_pydict(
        {"key": pa.array([b"k"] * len(partitions), pa.binary()), "partition": pa.array(partitions, pa.int64())}
    )
    router = Router("totals", {"totals": cast(Any, SimpleNamespace(partitions=4))}, cast(Any, None))
    ((topic, _, numbers),) = router.route(rows)
    assert (topic, numbers.dtype.name) == ("totals", "int32")
    return [int(number) for number in numbers]


def test_a_row_goes_to_the_partition_that_it_names_else_to_its_keys() -> None:
    (by_key,) = routed(None)
    assert routed(0, 3, None) == [0, 3, by_key]


@pytest.mark.parametrize("number", [4, -1, 2**32 + 1, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("others", [(), (None,)])
def test_a_partition_that_the_topic_lacks_is_refused_by_its_number(number: int, others: tuple[None, ...]) -> None:
    with pytest.raises(RecordRefusedError, match=f"a record's partition is {number}; topic totals has 4, 0 to 3"):
        routed(1, number, *others)
