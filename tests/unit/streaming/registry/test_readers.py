"""Values whose schemas a registry gives, also what it gives of schemas that were deleted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.registry.avro_format import AvroFormat
from airflow_provider_exactlyonce.streaming.registry.connection import RegistryAddress
from airflow_provider_exactlyonce.streaming.registry.wire_format import head

MONEY = {"type": "fixed", "name": "Money", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 2}
PRICE = {"type": "record", "name": "Price", "fields": [{"name": "paid", "type": "Money"}]}


def with_reference(schema: Any, subject: str) -> dict[str, Any]:
    return {"schema": json.dumps(schema), "references": [{"name": "Money", "subject": subject, "version": 1}]}


#: What the registry has by its ids, and by its subjects' first versions: one is deleted, and stays readable as that.
SCHEMAS = {7: with_reference(PRICE, "money"), 8: with_reference(PRICE, "gone"), 9: with_reference(PRICE, "never")}
VERSIONS = {"money": (MONEY, False), "gone": (MONEY, True)}


class Registry(BaseHTTPRequestHandler):
    """Answers as the interface of registries says."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        deleted = parse_qs(url.query).get("deleted") == ["true"]
        match url.path.strip("/").split("/"):
            case ["schemas", "ids", number]:
                self.answer(200, SCHEMAS[int(number)])
            case ["subjects", subject, "versions", "1"] if subject in VERSIONS and deleted >= VERSIONS[subject][1]:
                schema, _ = VERSIONS[subject]
                self.answer(200, {"subject": subject, "version": 1, "id": 1, "schema": json.dumps(schema)})
            case _:
                self.answer(404, {"error_code": 40402, "message": "Version not found"})

    def answer(self, status: int, body: Any) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[RegistryAddress]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield RegistryAddress(json.dumps({"url": f"http://127.0.0.1:{server.server_port}"}))
        server.shutdown()
        thread.join()


def test_a_schema_that_another_one_refers_to_is_read_also_after_its_deletion(address: RegistryAddress) -> None:
    decoder = AvroFormat().reader("paid DECIMAL(4,2)", address).open()
    records, reasons = decoder.decode(pa.array([head(7) + b"\0\x64", head(8) + b"\0\x65"]))
    assert (records.to_pylist(), reasons) == ([{"paid": Decimal("1.00")}, {"paid": Decimal("1.01")}], {})


def test_a_schema_that_refers_to_one_which_never_was_is_refused_with_the_registrys_words(
    address: RegistryAddress,
) -> None:
    decoder = AvroFormat().reader("paid DECIMAL(4,2)", address).open()
    with pytest.raises(RefusedError, match="version 1 of subject never: Version not found"):
        decoder.decode(pa.array([head(9) + b"\0\x64"]))
