"""A real HTTP server that keeps what it is sent, and fails as a test asks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Keeps what it is sent, in order; answers only as often as it should."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        super().__init__(address, Handler)
        self.commits: list[tuple[int, list[int]]] = []
        self.unavailable = 0  # requests that it refuses yet
        self.lost = 0  # requests that it keeps and does not answer
        self.asked = 0

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Server]:
        with cls() as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            yield server
            server.shutdown()
            thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def ids(self) -> list[int]:
        return [number for _, ids in self.commits for number in ids]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.unavailable:
            self.server.unavailable -= 1
            self.send_error(503)
            return
        rows = [json.loads(line) for line in body.splitlines()]
        self.server.commits.append((int(self.headers["Idempotency-Key"]), [row["id"] for row in rows]))
        if self.server.lost:
            self.server.lost -= 1
            self.close_connection = True
            return
        self._answer(b"")

    def do_GET(self) -> None:
        self.server.asked += 1
        self._answer(str(max((commit for commit, _ in self.server.commits), default=0)).encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass
