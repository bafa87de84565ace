"""Read from a stopped broker's metadata log whether the controller still takes the broker for alive.

Only two of KRaft's record formats are read: a broker's registration, and its changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Final

METADATA_FOLDER: Final = "__cluster_metadata-0"
_REGISTER_BROKER: Final = 0
_BROKER_REGISTRATION_CHANGE: Final = 17
_EPOCH_BYTES: Final = 8
_UUID_BYTES: Final = 16


def is_unfenced(log_directory: Path, broker_id: int) -> bool:
    """Tell whether the metadata log on disk has the broker as registered and not fenced.

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
            fenced = _fenced(BytesIO(value), broker_id)
            unfenced = unfenced if fenced is None else not fenced
    return unfenced


def _values(content: bytes, first_offset: int) -> Iterator[bytes]:
    """Yield the records from an offset on, up to a batch that was not written to its end."""
    from kafka.errors import CorruptRecordError
    from kafka.record import MemoryRecords

    with contextlib.suppress(CorruptRecordError):
        for batch in MemoryRecords(content):
            if batch.base_offset >= first_offset and not batch.is_control_batch:
                yield from (record.value for record in batch)


def _fenced(record: BytesIO, broker_id: int) -> bool | None:
    """Return whether a record fences the broker, None if it does not concern the broker."""
    from kafka.protocol.schemas.fields.codecs import Boolean, Int32, String, TaggedFields, UnsignedVarInt32

    text, tags = String(), TaggedFields([])
    _, kind, version = (UnsignedVarInt32.decode(record) for _ in range(3))  # of the frame, and of what is in it
    if kind not in (_REGISTER_BROKER, _BROKER_REGISTRATION_CHANGE) or Int32.decode(record) != broker_id:
        return None
    if kind == _BROKER_REGISTRATION_CHANGE:
        record.read(_EPOCH_BYTES)
        change = tags.decode(record).get("_0", b"\0")  # 1 fences, -1 unfences
        return None if change == b"\0" else bool(change == b"\1")
    record.read((1 if version >= 2 else 0) + _UUID_BYTES + _EPOCH_BYTES)  # whether it migrates, incarnation, epoch
    for texts in (2, 1):  # endpoints: name, host, port, protocol; then features: name, lowest and highest version
        for _ in range(UnsignedVarInt32.decode(record) - 1):
            for _ in range(texts):
                text.decode(record, compact=True)
            record.read(2 + 2)
            tags.decode(record)
    text.decode(record, compact=True)  # rack
    return bool(Boolean.decode(record))
