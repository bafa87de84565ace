from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint, TornFileError, parse_offsets, whole

#: As Spark 4.2 writes it.
TEXT = (
    "v1\n"
    '{"batchWatermarkMs":1500,"batchTimestampMs":1790000000000,"conf":{"spark.sql.shuffle.partitions":"4"}}\n'
    '{"in":{"0":41,"1":7}}\n'
    "-"
)


def test_an_offset_log_entry_is_read() -> None:
    offsets = parse_offsets(TEXT)
    assert (offsets.watermark, offsets.timestamp) == (1500, 1790000000000)
    assert offsets.sources == ('{"in":{"0":41,"1":7}}', None)
    assert offsets.kafka_ends() == {"in": {0: 41, 1: 7}}
    assert offsets.text == TEXT


def test_the_order_of_partitions_makes_no_difference_and_their_offsets_do() -> None:
    offsets = parse_offsets(TEXT)
    assert offsets.same_sources(parse_offsets(TEXT.replace('"0":41,"1":7', '"1":7,"0":41').replace("1500", "9")))
    assert not offsets.same_sources(parse_offsets(TEXT.replace("41", "42")))


def test_every_truncation_before_the_last_source_is_noticed() -> None:
    for length in range(TEXT.index("7}}") + 2):
        with pytest.raises(TornFileError):
            parse_offsets(TEXT[:length])


@pytest.mark.parametrize("text", ["", "\x00" * 50, "v2\n{}\na:{}", TEXT.replace("v1", "v9")])
def test_what_is_no_entry_of_this_format_is_refused(text: str) -> None:
    with pytest.raises(TornFileError):
        parse_offsets(text)


def test_batches_are_found_and_other_files_are_not(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.newest_offsets() is None
    (tmp_path / "offsets").mkdir()
    for name in ("9", "10", ".10.crc", "11.tmp", ".12.abc.tmp"):
        (tmp_path / "offsets" / name).write_text(TEXT)
    assert checkpoint.batches("offsets") == [9, 10]
    assert checkpoint.newest_offsets() == 10
    assert checkpoint.newest_commit() is None


def test_writing_offsets_back_drops_the_checksum_of_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/.3.crc").write_bytes(b"crc")
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write_offsets(3, TEXT)
    assert (tmp_path / "offsets/3").read_text() == TEXT
    assert [file.name for file in (tmp_path / "offsets").iterdir()] == ["3"]
    offsets = checkpoint.offsets(3)
    assert offsets is not None
    assert offsets.text == TEXT


def test_topics_of_several_sources_are_named() -> None:
    lines = ['{"a":{"0":5},"b":{"0":1}}', '{"logOffset":3}', '{"logOffset":4}', "-", '{"c":{"1":6},"a":{"0":7}}']
    offsets = parse_offsets("\n".join(["v1", '{"batchWatermarkMs":0,"batchTimestampMs":1}', *lines]))
    assert offsets.of_several_sources == ["a"]


def test_initial_offsets_are_read_over_sparks_leading_zero_byte(tmp_path: Path) -> None:
    for source, body in ((0, b'\x00v1\n{"a":{"0":5}}'), (1, b'v1\n{"b":{"0":6}}')):
        (tmp_path / "sources" / str(source)).mkdir(parents=True)
        (tmp_path / "sources" / str(source) / "0").write_bytes(body)
    assert Checkpoint(tmp_path).kafka_starts(0) == {"a": {0: 5}, "b": {0: 6}}


@pytest.mark.parametrize(("text", "good"), [('v1\n{"nextBatchWatermarkMs":0}', True), ("v1\n{", False), ("", False)])
def test_a_torn_commit_is_noticed(tmp_path: Path, text: str, good: bool) -> None:
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits/0").write_text(text)
    assert (whole(Checkpoint(tmp_path).commit, 0) is not None) is good
