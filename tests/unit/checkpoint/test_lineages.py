from __future__ import annotations

import json
from pathlib import Path

from airflow_provider_exactlyonce.checkpoint import lineages
from airflow_provider_exactlyonce.checkpoint.layout import parse_offsets
from airflow_provider_exactlyonce.checkpoint.offsets_text import adapted
from airflow_provider_exactlyonce.control import json_store
from airflow_provider_exactlyonce.control.home import Lineage

SCHEMAS = "file:/gone/lineages/old/checkpoint/state/0/_stateSchema/default/0_a"


def source(path: Path) -> list[str]:
    """Make a checkpoint; returns its files."""
    files = {
        "metadata": '{"id":"old"}',
        "offsets/3": "v1",
        "commits/3": "v1",
        "state/0/_metadata/v2/0": f'v2\n{{"stateStoreInfo":[{{"stateSchemaFilePaths":["{SCHEMAS}"]}}]}}',
        "state/0/0/4_x.zip": "zip",
    }
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return list(files)


def test_a_lineage_is_a_copy_with_an_id_and_paths_of_its_own(tmp_path: Path) -> None:
    saved, target = tmp_path / "saved", tmp_path / "lineages" / "new"
    lineages.make(target, saved, source(saved), Lineage(id="new", base_batch=3, base_commit=9))
    checkpoint = target / "checkpoint"
    assert json.loads((checkpoint / "metadata").read_text()) == {"id": "new"}
    metadata = json.loads((checkpoint / "state/0/_metadata/v2/0").read_text().partition("\n")[2])
    (schemas,) = metadata["stateStoreInfo"][0]["stateSchemaFilePaths"]
    assert schemas == f"file:{checkpoint}/state/0/_stateSchema/default/0_a"
    assert SCHEMAS in (saved / "state/0/_metadata/v2/0").read_text(), "the original stays as it is"
    assert (checkpoint / "state/0/0/4_x.zip").stat().st_ino == (saved / "state/0/0/4_x.zip").stat().st_ino
    assert (checkpoint / "offsets/3").stat().st_ino != (saved / "offsets/3").stat().st_ino
    body = json_store.read(target / "lineage.json")
    assert body is not None
    assert (body["base_batch"], body["base_commit"]) == (3, 9)


def test_what_a_killed_restore_leaves_is_removed(tmp_path: Path) -> None:
    for name in (".unfinished-a", "whole"):
        (tmp_path / name / "checkpoint").mkdir(parents=True)
    lineages.remove_unfinished(tmp_path, None)
    assert [entry.name for entry in tmp_path.iterdir()] == ["whole"]
    lineages.remove_unfinished(tmp_path / "absent", None)


def test_batches_and_commits_of_a_restored_lineage_are_mapped() -> None:
    restored = Lineage(id="new", base_batch=3, base_commit=9)
    assert (restored.commit_of(3), restored.commit_of(5), restored.batch_of(12)) == (9, 11, 6)
    first = Lineage(id="first")
    assert (first.commit_of(0), first.batch_of(1), first.batch_of(0)) == (1, 0, -1)


def test_a_recorded_entry_gets_the_lineages_configuration_and_keeps_everything_else() -> None:
    recorded = (
        'v1\n{"batchWatermarkMs":7,"batchTimestampMs":8,"conf":{"spark.sql.shuffle.partitions":"4"}}\n{"t":{"0":1}}\n-'
    )
    own = (
        'v1\n{"batchWatermarkMs":1,"batchTimestampMs":2,"conf":{"spark.sql.shuffle.partitions":"2"}}\n{"t":{"0":0}}\n-'
    )
    entry = parse_offsets(adapted(recorded, confs_of=own, watermark=None))
    assert (entry.watermark, entry.timestamp, entry.sources) == (7, 8, ('{"t":{"0":1}}', None))
    assert entry.conf == {"spark.sql.shuffle.partitions": "2"}
    assert parse_offsets(adapted(recorded, confs_of=own, watermark=5)).watermark == 5
    assert parse_offsets(adapted(recorded, confs_of=None, watermark=None)).conf["spark.sql.shuffle.partitions"] == "4"
