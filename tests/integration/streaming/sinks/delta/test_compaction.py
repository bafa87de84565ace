"""What a compaction of a Delta table says to readers of its versions, and tables on which there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_provider_exactlyonce.exceptions import RefusedError
from tests.integration.streaming.sinks.delta.lake import LONG, TEXT, DeltaLake
from tests.integration.streaming.sinks.lake import COLUMNS, Live, rows


def actions(lake: DeltaLake, kind: str) -> list[dict[str, object]]:
    """Return the actions of a kind of the newest version."""
    lines = [json.loads(line) for line in lake.log_entry(lake.table.version())]
    return [line[kind] for line in lines if kind in line]


@pytest.mark.parametrize("name", ["delta.appendOnly", "delta.enableChangeDataFeed"])
def test_readers_of_versions_get_each_row_once(lake: DeltaLake, tmp_path: Path, name: str) -> None:
    lake.create(LONG, TEXT, configuration={name: "true"})
    live = Live(lake.sink(compact_every=3), tmp_path)
    for number in range(3):
        live.commit(rows(5 * number, 5))
    assert [len(actions(lake, kind)) for kind in ("add", "remove")] == [1, 3]
    assert not any(action["dataChange"] for kind in ("add", "remove") for action in actions(lake, kind))
    (information,) = actions(lake, "commitInfo")
    assert information["isBlindAppend"] is False
    assert information["exactlyonce"] == {"pipeline": "shop", "sink": "lake", "compaction": 1}
    if name == "delta.enableChangeDataFeed":
        changes = pa.table(lake.table.load_cdf(starting_version=0).read_all())
        assert sorted(changes["id"].to_pylist()) == list(range(15))
        assert set(changes["_change_type"].to_pylist()) == {"insert"}
    assert lake.rows() == rows(0, 15)


def test_older_versions_stay_readable_until_a_vacuum(lake: DeltaLake, tmp_path: Path) -> None:
    live = Live(lake.sink(compact_every=3), tmp_path)
    entries = [live.commit(rows(5 * number, 5)) for number in range(3)]
    before = lake.table.version() - 1
    assert DeltaTable(lake.path, version=before).to_pyarrow_table().num_rows == 15
    lake.vacuum()
    assert len(lake.files()) == 1
    assert lake.rows() == rows(0, 15)
    assert live.audit(entries) == []


def test_a_table_whose_rows_may_be_deleted_beside_their_files_is_refused(lake: DeltaLake) -> None:
    lake.create(LONG, TEXT)
    name = "deletionVectors"
    lake.change("protocol", minReaderVersion=3, minWriterVersion=7, readerFeatures=[name], writerFeatures=[name])
    lake.sink().check_columns(COLUMNS)
    with pytest.raises(RefusedError, match=f"has the feature {name}.* when it rewrites them"):
        lake.sink(compact_every=3).check_columns(COLUMNS)
