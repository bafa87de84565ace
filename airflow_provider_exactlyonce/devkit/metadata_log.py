"""Read from a stopped broker's metadata log whether the controller still takes the broker for alive.

Only what that one question needs of KRaft's record formats: a broker's registration, and the changes of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

METADATA_FOLDER: Final = "__cluster_metadata-0"
_BATCH_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_BYTES_BEFORE_LENGTH_COUNTS: Final = 12
_CONTROL_BATCH: Final = 0x20
_REGISTER_BROKER: Final = 0
_BROKER_REGISTRATION_CHANGE: Final = 17
_FENCED_TAG: Final = 0
_UUID_BYTES: Final = 16


def is_unfenced(log_directory: Path, broker_id: int) -> bool:
    """Tell whether, by what is on disk, the broker is registered and not fenced.

    :param log_directory: the broker's ``log.dirs``; the answer is no if there is no metadata log in it
    """
    folder = log_directory / METADATA_FOLDER
    # The names begin with the end offset, in twenty digits.
    snapshots = sorted(file for file in folder.glob("*.checkpoint") if file.name.partition("-")[0].isdecimal())
    end_of_snapshot = int(snapshots[-1].name.partition("-")[0]) if snapshots else 0
    unfenced = False
    for path in [*snapshots[-1:], *sorted(folder.glob("*.log"))]:
        first_offset = end_of_snapshot if path.suffix == ".log" else 0
        for value in _values(path.read_bytes(), first_offset):
            fenced = _fenced(_RecordReader(value), broker_id)
            unfenced = unfenced if fenced is None else not fenced
    return unfenced


def _values(content: bytes, first_offset: int) -> Iterator[bytes]:
    """Yield the records from an offset on, up to a batch that was not written to its end."""
    position = 0
    while position + _BATCH_HEADER.size <= len(content):
        base, length, _, _, _, attributes, *_, count = _BATCH_HEADER.unpack_from(content, position)
        end = position + _BYTES_BEFORE_LENGTH_COUNTS + length
        if length <= 0 or end > len(content):
            return
        if base >= first_offset and not attributes & _CONTROL_BATCH:
            batch = _RecordReader(content[position + _BATCH_HEADER.size : end])
            for _ in range(count):
                yield _value(_RecordReader(batch.take(batch.signed())))
        position = end


def _value(record: _RecordReader) -> bytes:
    record.number("b")  # attributes
    record.signed()  # timestamp
    record.signed()  # offset
    record.take(max(record.signed(), 0))  # key
    return record.take(record.signed())


def _fenced(record: _RecordReader, broker_id: int) -> bool | None:
    """Return what a record makes of the broker, None if it says nothing about it."""
    record.unsigned()  # version of the frame
    kind, version = record.unsigned(), record.unsigned()
    if kind not in (_REGISTER_BROKER, _BROKER_REGISTRATION_CHANGE) or record.number("i") != broker_id:
        return None
    if kind == _BROKER_REGISTRATION_CHANGE:
        record.number("q")  # epoch
        return _fenced_by_change(record)
    record.take(1 if version >= 2 else 0)  # whether it migrates
    record.take(_UUID_BYTES)  # incarnation
    record.number("q")  # epoch
    for _ in range(record.unsigned() - 1):  # endpoints: name, host, port, protocol
        record.text()
        record.text()
        record.take(2 + 2)
        record.skip_tags()
    for _ in range(record.unsigned() - 1):  # features: name, lowest and highest version
        record.text()
        record.take(2 + 2)
        record.skip_tags()
    record.text()  # rack
    return bool(record.number("b"))


def _fenced_by_change(record: _RecordReader) -> bool | None:
    for _ in range(record.unsigned()):
        tag, content = record.unsigned(), record.take(record.unsigned())
        if tag == _FENCED_TAG and content != b"\0":
            return content == b"\1"  # 1 fences, -1 unfences
    return None


class _RecordReader:
    """Takes values off a record, in the protocol's newer encoding (variable lengths)."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def signed(self) -> int:
        value = self.unsigned()
        return (value >> 1) ^ -(value & 1)

    def number(self, code: str) -> int:
        (value,) = struct.unpack(f">{code}", self.take(struct.calcsize(f">{code}")))
        return int(value)

    def take(self, size: int) -> bytes:
        self._position += size
        return self._content[self._position - size : self._position]

    def text(self) -> bytes:
        return self.take(max(self.unsigned() - 1, 0))

    def skip_tags(self) -> None:
        for _ in range(self.unsigned()):
            self.unsigned()
            self.take(self.unsigned())
