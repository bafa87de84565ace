"""moto's server, one request after the other: it compares and writes in two steps, so that two at once would both win.

It prints its address on stderr, as moto's own command does.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

_moto: Any = DomainDispatcherApplication(create_backend_app)
_SOMEBODY = "AWS4-HMAC-SHA256 Credential=key/20240101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=none"
_turn = threading.Lock()


def in_amazons_words(environment: dict[str, Any]) -> None:
    """Change a request to Google's XML interface into the same one of S3's; the conditions and the keys differ."""
    if environment.pop("HTTP_X_GOOG_IF_GENERATION_MATCH", None) == "0":
        environment["HTTP_IF_NONE_MATCH"] = "*"
    if not environment.get("HTTP_AUTHORIZATION", "").startswith("AWS4"):
        environment["HTTP_AUTHORIZATION"] = _SOMEBODY


def answer(environment: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    in_amazons_words(environment)
    if length := environment.get("CONTENT_LENGTH"):  # nobody keeps the turn while he still sends
        environment["wsgi.input"] = io.BytesIO(environment["wsgi.input"].read(int(length)))
    with _turn:
        return list(_moto(environment, start_response))


if __name__ == "__main__":
    run_simple("127.0.0.1", 0, answer, threaded=True)
