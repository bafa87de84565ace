"""Which files a batch needs, and that each one that is missing, empty, truncated or changed is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.checkpoint import integrity
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from tests.unit.checkpoint import crafted


@pytest.fixture
def made(tmp_path: Path) -> Checkpoint:
    return crafted.checkpoint(tmp_path / "checkpoint")


def test_a_batch_needs_its_own_files_and_no_later_ones(made: Checkpoint) -> None:
    batch = integrity.files_of(made, 1)
    assert batch.defects == ()
    names = set(batch.files)
    assert {"metadata", "offsets/0", "offsets/1", "commits/1", "sources/0/0", "state/0/_metadata/metadata"} <= names
    assert not any(path.startswith(("offsets/2", "commits/2", "state/0/0/3_", "state/0/1/3_")) for path in names)
    tables = [path for path in names if path.endswith(".sst")]
    assert sorted(path.split("/")[-1][:6] for path in tables) == ["000000", "000000", "000001", "000001"]
    assert integrity.newest_whole(made) == (2, [])


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _zeroed(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        (pattern, damage)
        for pattern in (
            "offsets/2",
            "commits/2",
            "state/0/1/3_*.zip",
            "state/0/0/SSTs/000002-*.sst",
            "state/0/_metadata/metadata",
        )
        for damage in (_truncate, _empty, Path.unlink)
    ]
    + [("offsets/2", _zeroed), ("commits/2", _zeroed), ("state/0/1/3_*.zip", _zeroed)],
)
def test_a_damaged_file_of_the_newest_batch_is_named_and_the_batch_before_is_the_newest_whole_one(
    made: Checkpoint, pattern: str, damage: Callable[[Path], None]
) -> None:
    (file,) = made.path.glob(pattern)
    damage(file)
    whole_batch, defects = integrity.newest_whole(made)
    if pattern == "commits/2" and damage is Path.unlink:
        assert (whole_batch, defects) == (1, [])  # the batch is simply not done
    elif pattern == "state/0/_metadata/metadata" and damage is Path.unlink:
        assert whole_batch is None
        assert "state/0/_metadata is missing" in map(str, defects)
    elif pattern.startswith("state/0/_metadata"):  # all batches need it
        assert whole_batch is None
        assert {defect.path for defect in defects} == {"state/0/_metadata/metadata"}
    else:
        assert whole_batch == 1
        named = {defect.path for defect in defects}
        relative = str(file.relative_to(made.path))
        assert relative in named or any(relative.startswith(path.split("*")[0]) for path in named), named


@pytest.mark.parametrize("name", ["metadata"])
@pytest.mark.parametrize("damage", [_truncate, _empty, _zeroed, Path.unlink])
def test_without_the_query_id_no_batch_is_whole(made: Checkpoint, name: str, damage: Callable[[Path], None]) -> None:
    damage(made.path / name)
    whole_batch, defects = integrity.newest_whole(made)
    assert whole_batch is None
    assert {defect.path for defect in defects} == {name}


def test_a_flipped_byte_in_a_zip_is_found_by_sparks_own_checksum(made: Checkpoint) -> None:
    (file,) = made.path.glob("state/0/0/3_*.zip")
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.write_bytes(data)
    whole_batch, defects = integrity.newest_whole(made)
    assert whole_batch == 1
    assert defects[0].path == str(file.relative_to(made.path))


@pytest.mark.parametrize("noted", [True, False])
def test_wherever_a_zip_is_wrong_it_is_torn_and_nothing_else(made: Checkpoint, noted: bool) -> None:
    (file,) = made.path.glob("state/0/0/3_*.zip")
    if not noted:
        file.with_name(f"{file.name}.crc").unlink()
    whole = file.read_bytes()
    for position in range(0, len(whole), 5):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        batch, defects = integrity.newest_whole(made)
        assert (batch, len(defects)) == (1, 1) or not noted
        assert all("is torn" in defect.reason for defect in defects)


def test_state_that_is_gone_altogether_is_missed(made: Checkpoint) -> None:
    shutil.rmtree(made.path / "state")
    whole_batch, defects = integrity.newest_whole(made)
    assert whole_batch is None
    assert list(map(str, defects)) == ["state/0/_metadata is missing"]


def test_what_a_failed_start_left_behind_is_no_part_of_a_batch(made: Checkpoint) -> None:
    (made.path / "offsets/3").write_text(crafted.offsets_text(3))
    (made.path / "state/1/_metadata/v2").mkdir(parents=True)
    (made.path / "state/1/_metadata/v2/3").write_text("v2\n{}")
    assert integrity.newest_whole(made) == (2, [])
    assert not any("state/1" in path for path in integrity.files_of(made, 2).files)


def test_a_file_of_an_attempt_that_failed_is_left_out(made: Checkpoint) -> None:
    (zip_file,) = made.path.glob("state/0/0/3_*.zip")
    stray = zip_file.with_name("3_00000000-0000-4000-8000-000000000000.zip")
    stray.write_bytes(zip_file.read_bytes())
    assert str(stray.relative_to(made.path)) not in integrity.files_of(made, 2).files


def test_a_batch_has_as_many_state_partitions_as_its_offsets_say(made: Checkpoint) -> None:
    file = made.path / "offsets/2"
    text = file.read_text()
    for partitions, missing in ((1, []), (2, []), (3, ["state/0/2"])):  # its operator's metadata says 2
        file.write_text(text.replace('"conf": {', f'"conf": {{"spark.sql.shuffle.partitions": "{partitions}", '))
        needed = integrity.files_of(made, 2)
        assert [defect.path for defect in needed.defects] == missing
        assert any(path.startswith("state/0/1/") for path in needed.files) is (partitions > 1)
