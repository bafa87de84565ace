"""The records of a workload as Avro in a schema registry's wire format, and what an engine has written so."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, Final

import fastavro
import pyarrow as pa
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

_MAGIC: Final = b"\0"
_HEADER_BYTES: Final = 5


def _record(name: str, fields: Mapping[str, Any]) -> str:
    return json.dumps(
        {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields.items()]}
    )


def _decimal(precision: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 2}


_READ: Final = {
    "event_id": "long",
    "uuid": "string",
    "itemCode": "string",
    "behavior": "string",
    "price": _decimal(12),
    "ts": "long",
}
#: What the events are written with, what an engine reads of them, and what Spark's lanes write.
WRITTEN_EVENT: Final = _record("event", {**_READ, "note": "string"})
READ_EVENT: Final = _record("event", _READ)
RESULT: Final = _record(
    "result", {"event_id": "long", "uuid": "string", "itemCode": "string", "total": ["null", _decimal(14)]}
)


def header(schema_id: int) -> bytes:
    """Return what comes before the Avro binary."""
    return _MAGIC + schema_id.to_bytes(4, "big")


class AvroValues:
    """Writes events and reads results, with a registry.

    :param url: the registry's
    """

    def __init__(self, url: str) -> None:
        self.url: Final = url
        self._client = SchemaRegistryClient({"url": url})
        self._event = fastavro.parse_schema(json.loads(WRITTEN_EVENT))
        self._event_header = header(self._client.register_schema("events-value", Schema(WRITTEN_EVENT, "AVRO")))
        self.result_id: Final = self._client.register_schema("results-value", Schema(RESULT, "AVRO"))
        self._writers: dict[bytes, Any] = {}

    def encode(self, event: Mapping[str, Any]) -> bytes:
        """Return the value of one event's record."""
        value = io.BytesIO(self._event_header)
        value.seek(_HEADER_BYTES)
        fastavro.schemaless_writer(value, self._event, event)
        return value.getvalue()

    def table(self, values: list[bytes], schema: pa.Schema) -> pa.Table:
        """Return results as a table.

        :raises ArrowInvalid: when one does not fit
        """
        rows = [
            fastavro.schemaless_reader(io.BytesIO(value[_HEADER_BYTES:]), self._writer(value[:_HEADER_BYTES]), None)
            for value in values
        ]
        return pa.Table.from_pylist(rows, schema=schema)

    def _writer(self, head: bytes) -> Any:
        if head not in self._writers:
            text = self._client.get_schema(int.from_bytes(head[1:], "big")).schema_str
            self._writers[head] = fastavro.parse_schema(json.loads(str(text)))
        return self._writers[head]
