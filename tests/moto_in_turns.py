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
_turn = threading.Lock()


def answer(environment: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    if length := environment.get("CONTENT_LENGTH"):  # nobody keeps the turn while he still sends
        environment["wsgi.input"] = io.BytesIO(environment["wsgi.input"].read(int(length)))
    with _turn:
        return list(_moto(environment, start_response))


if __name__ == "__main__":
    run_simple("127.0.0.1", 0, answer, threaded=True)
