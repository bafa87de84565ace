"""Which partition a value belongs to, at the ends of its type."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import DecimalType, IcebergType, IntegerType, LongType, NestedField

from airflow_provider_exactlyonce.exceptions import RecordRefusedError
from airflow_provider_exactlyonce.streaming.sinks.iceberg.partitions import Partitioning


def values_of(kind: IcebergType, arrow: pa.DataType, *values: Any) -> list[Any]:
    part = PartitionField(source_id=1, field_id=1000, transform=parse_transform("truncate[10]"), name="n_trunc")
    partitioning = Partitioning(PartitionSpec(part), Schema(NestedField(1, "n", kind, required=False)))
    rows = pa.RecordBatch.from_arrays([pa.array(values, arrow)], names=["n"])
    return list(partitioning.values(rows)["n_trunc"].to_pylist())


@pytest.mark.parametrize(
    ("kind", "arrow", "value"),
    [
        (IntegerType(), pa.int32(), -(2**31)),
        (LongType(), pa.int64(), -(2**63)),
        (DecimalType(4, 2), pa.decimal128(4, 2), Decimal("-99.95")),
    ],
)
def test_a_number_whose_cut_its_type_has_no_room_for_is_refused_by_its_column(
    kind: IcebergType, arrow: pa.DataType, value: Any
) -> None:
    with pytest.raises(RecordRefusedError) as raised:
        values_of(kind, arrow, 7, value)
    assert str(raised.value).startswith(
        f"column n is {value}, which truncate[10] cuts to a number that its type has no room"
    )


def test_the_least_number_that_can_be_cut_is() -> None:
    assert values_of(IntegerType(), pa.int32(), None, 2**31 - 1, -(2**31) + 8) == [None, 2**31 - 8, -(2**31) + 8]
    assert values_of(DecimalType(4, 2), pa.decimal128(4, 2), Decimal("-99.90")) == [Decimal("-99.90")]
