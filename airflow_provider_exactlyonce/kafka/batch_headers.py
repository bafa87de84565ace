"""Headers of Kafka record batches (format v2): the producer and offsets of each batch, without decoding a record."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_LENGTH_STARTS_AFTER: Final = 12
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """One batch of a log.

    :param first: offset of its first record
    :param last: of its last one
    :param is_control: it holds a transaction's marker instead of records
    """

    first: int
    last: int
    producer_id: int
    epoch: int
    is_transactional: bool
    is_control: bool


def read_headers(records: bytes) -> Iterator[BatchHeader]:
    """Yield the batch headers in a fetch's bytes; a last batch that is cut off is left out."""
    position = 0
    while position + _HEADER.size <= len(records):
        base, length, _, _, _, attributes, last_delta, _, _, producer_id, epoch, _, _ = _HEADER.unpack_from(
            records, position
        )
        position += _LENGTH_STARTS_AFTER + length
        if position > len(records):
            return
        yield BatchHeader(
            first=base,
            last=base + last_delta,
            producer_id=producer_id,
            epoch=epoch,
            is_transactional=bool(attributes & _TRANSACTIONAL),
            is_control=bool(attributes & _CONTROL),
        )
