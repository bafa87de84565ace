"""Values of several schemas in one batch, and what is no value of any."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from airflow_provider_exactlyonce.streaming.registry import avro_types, wire_format
from airflow_provider_exactlyonce.streaming.registry.avro_decoder import AvroDecoder
from airflow_provider_exactlyonce.streaming.registry.avro_format import AvroFormat
from airflow_provider_exactlyonce.streaming.registry.wire_format import Decoder, WireDecoder, head
from tests.clocks import StandingClock

READER = avro_types.parse(AvroFormat().reading_schema("id BIGINT NOT NULL, note STRING"))
OLD = avro_types.parse('{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}')
NEW = avro_types.parse(
    json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": name, "type": "string"} for name in ("note", "more")]}
        | {"fields": [{"name": "note", "type": "string"}, {"name": "id", "type": "long"}]}
    )
)
OTHER = avro_types.parse('{"type": "record", "name": "R", "fields": [{"name": "note", "type": "string"}]}')


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    clock = StandingClock()
    monkeypatch.setattr(wire_format, "time", clock)
    return clock


def decoder(asked: list[int]) -> WireDecoder:
    def find(number: int) -> Decoder | None:
        asked.append(number)
        known = {1: OLD, 2: NEW, 3: OTHER}.get(number)
        return None if known is None else AvroDecoder(known, READER)

    return WireDecoder(avro_types.arrow_type(READER), find)


def test_each_value_is_read_by_the_schema_that_it_names() -> None:
    values = [head(1) + b"\x02", head(2) + b"\x02a\x04", None, head(1) + b"\x06", head(3) + b"\x02a", head(9), b"{}"]
    asked: list[int] = []
    wire = decoder(asked)
    array, reasons = wire.decode(pa.array([*values, b"\x01\0\0\0\1\x02", b"\0\x80\0\0\0"], pa.binary()))
    assert array.take(pa.array([0, 1, 3])).to_pylist() == [
        {"id": 1, "note": None},
        {"id": 2, "note": "a"},
        {"id": 3, "note": None},
    ]
    assert reasons == {
        2: "it has no value (a tombstone)",
        4: "schema 3 of the registry does not fit: the required field id is missing",
        5: "the schema registry has no schema 9",
        6: "it is not in a schema registry's wire format: 2 bytes",
        7: "it is not in a schema registry's wire format: its first byte is 0x01, not 0x00",
        8: "it is not in a schema registry's wire format: 2147483648 is no schema's id",
    }
    assert set(asked) == {1, 2, 3, 9}
    wire.decode(pa.array(values, pa.binary()))
    assert [asked.count(number) for number in (1, 2)] == [1, 1], "what exists is asked for once"


def test_a_schema_that_comes_late_is_waited_for_once_and_one_that_never_comes_costs_no_more_pauses(
    clock: StandingClock,
) -> None:
    began, known = clock.now, {1}
    clock.meanwhile = lambda: known.add(2)
    wire = WireDecoder(
        avro_types.arrow_type(READER), lambda number: AvroDecoder(OLD, READER) if number in known else None
    )
    values = pa.array([head(1) + b"\x02", head(2) + b"\x04", head(8) + b"\x06", head(9) + b"\x08"], pa.binary())
    for _ in range(3):
        array, reasons = wire.decode(values)
        assert array.field("id").to_pylist()[:2] == [1, 2]
        assert reasons == {at: f"the schema registry has no schema {at + 6}" for at in (2, 3)}
        assert clock.now == began + 1
    clock.now += 60
    known.add(8)
    clock.meanwhile = lambda: known.add(9)
    assert wire.decode(values)[1] == {}


def test_values_that_are_a_part_of_a_larger_array_are_read() -> None:
    values = pa.array([head(1) + bytes([2 * number]) for number in range(9)], pa.binary())
    array, reasons = decoder([]).decode(values[3:7])
    assert (array.field("id").to_pylist(), reasons) == ([3, 4, 5, 6], {})
    array, reasons = decoder([]).decode(values[:0])
    assert (len(array), reasons) == (0, {})
