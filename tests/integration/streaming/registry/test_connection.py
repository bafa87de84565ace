"""What the answers of a registry's server mean, and those of whoever stands before it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from airflow_provider_exactlyonce.exceptions import BatchFailedError, ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.streaming.registry import connection

PAGE = "<html>a proxy's page</html>"


class _Server(BaseHTTPRequestHandler):
    answer: ClassVar[tuple[int, str]]

    def do_GET(self) -> None:
        status, body = self.answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[connection.Registry]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        config = {"url": f"http://127.0.0.1:{server.server_port}", "max.retries": 0}
        yield connection.connect(connection.RegistryAddress(json.dumps(config)))
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (401, PAGE, RefusedError, "check the credentials: EXACTLYONCE_SCHEMA_REGISTRY has them"),
        (401, json.dumps({"error_code": 40101, "message": "Unauthorized"}), RefusedError, "Unauthorized.*credentials"),
        (403, "", RefusedError, "check the credentials"),
        (409, json.dumps({"error_code": 409, "message": "incompatible"}), RefusedError, "incompatible"),
        (404, PAGE, BatchFailedError, "schema 7"),
        (429, json.dumps({"error_code": 42901, "message": "too many"}), BatchFailedError, "too many"),
        (500, json.dumps({"error_code": 50001, "message": "its store"}), BatchFailedError, "its store"),
        (502, PAGE, BatchFailedError, "schema 7"),
        (200, PAGE, BatchFailedError, "does not answer, schema 7"),
    ],
)
def test_an_answer_that_trying_again_does_not_change_is_refused_and_any_other_fails_the_batch(
    registry: connection.Registry, status: int, body: str, error: type[ExactlyOnceError], message: str
) -> None:
    _Server.answer = (status, body)
    with pytest.raises(error, match=message):
        registry.schema(7)


def test_a_schema_that_the_registry_does_not_have_is_none(registry: connection.Registry) -> None:
    _Server.answer = (404, json.dumps({"error_code": 40403, "message": "Schema not found"}))
    assert registry.schema(7) is None
