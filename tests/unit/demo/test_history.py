from __future__ import annotations

import json
from pathlib import Path

from demo.history import SOURCE_TOPIC, source_ranges


def write_offsets(checkpoint: Path, number: int, ends: dict[str, int]) -> None:
    folder = checkpoint / "offsets"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(number)).write_text("\n".join(["v1", '{"batchWatermarkMs":0}', json.dumps({SOURCE_TOPIC: ends})]))
    (folder / f".{number}.crc").write_bytes(b"crc")


def test_the_ranges_of_a_checkpoint_follow_each_other(tmp_path: Path) -> None:
    write_offsets(tmp_path, 0, {"0": 5, "1": 7})
    write_offsets(tmp_path, 1, {"0": 5, "1": 9})

    assert source_ranges(tmp_path) == [{0: (0, 5), 1: (0, 7)}, {0: (5, 5), 1: (7, 9)}]


def test_batches_are_in_the_order_of_numbers_not_of_names(tmp_path: Path) -> None:
    for number in range(11):
        write_offsets(tmp_path, number, {"0": number + 1})

    assert source_ranges(tmp_path)[10] == {0: (10, 11)}


def test_a_checkpoint_that_is_not_there_yet_has_no_ranges(tmp_path: Path) -> None:
    assert source_ranges(tmp_path / "absent") == []
