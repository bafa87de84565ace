"""One number for a place in a table's versions."""

from __future__ import annotations

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.records import shown
from airflow_provider_exactlyonce.tables import positions
from airflow_provider_exactlyonce.tables.positions import SNAPSHOT, Position, distance


def test_a_position_is_a_number_in_the_order_of_reading() -> None:
    read = [Position(0), Position(0, 1), Position(1), Position(12, 499_999), Position(13)]
    offsets = [position.offset for position in read]
    assert offsets == sorted(offsets) == [0, 1, 1_000_000, 12_499_999, 13_000_000]
    assert [Position.of(offset) for offset in offsets] == read == sorted(read)
    assert [str(position) for position in read[1:3]] == ["file 1 of version 0", "version 1"]


def test_a_whole_table_is_read_before_the_version_after_it() -> None:
    read = [Position(12), Position(12, SNAPSHOT - 1), Position(12, SNAPSHOT), Position(12, SNAPSHOT + 3), Position(13)]
    assert read == sorted(read)
    assert [position.is_snapshot for position in read] == [False, False, True, True, False]
    assert read[2].offset == 12_500_000
    assert Position.of(12_500_003) == read[3]
    assert [str(position) for position in read[2:4]] == ["the table at version 12", "file 3 of the table at version 12"]
    assert distance("delta:/t", read[2].offset, Position(15).offset) == 3


def test_what_is_between_two_positions_of_a_table_is_counted_in_versions() -> None:
    table = positions.name_of(positions.DELTA, "/data/orders")
    assert distance(table, Position(12).offset, Position(15).offset) == 3
    assert distance(table, Position(12, 3).offset, Position(15).offset) == 3
    assert distance(table, Position(12).offset, Position(12, 3).offset) == 1
    assert distance(table, Position(12, 3).offset, Position(12, 3).offset) == 0
    assert distance(table, 5, 4) == 0
    assert (distance("orders", 12, 15), distance("orders", 15, 12)) == (3, 0)


def test_no_topic_has_a_tables_name() -> None:
    name = positions.name_of(positions.DELTA, "s3://shop/orders")
    assert (name, positions.parse(name)) == ("delta:s3://shop/orders", ("delta", "s3://shop/orders"))
    assert positions.is_table(name)
    assert not positions.is_table("shop.orders-1_x")
    with pytest.raises(RefusedError, match="comma"):
        positions.name_of(positions.DELTA, "/data/a,b")


def test_ranges_are_shown_as_versions() -> None:
    source = {"orders": {0: (1, 3)}, "delta:/t": {0: (Position(4).offset, Position(5, 2).offset)}}
    assert shown(source) == "orders-0 1..3, delta:/t from version 4 to before file 2 of version 5"
