"""Checksums of a checkpoint's files: those that Spark and Hadoop have written beside them, and our own.

A checksum is a text, ``algorithm:hexadecimal digits``:

* ``crc32c`` over the file, which Spark writes to ``<file>.crc`` beside the files of state in checkpoint format 2;
* ``crc32/512``, the CRC-32 over the CRC-32 of each 512 bytes, which Hadoop's local file system keeps in
  ``.<file>.crc``. A file of a gigabyte costs a read of eight megabytes;
* ``crc32`` over the file, where no writer has left a checksum.
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.storage.opening import store_of

_CRC32C: Final = "crc32c"
_CHUNKED: Final = "crc32/512"
_CRC32: Final = "crc32"
_CHUNK_BYTES: Final = 512
_HADOOP_HEADER: Final = b"crc\x00" + struct.pack(">i", _CHUNK_BYTES)
_READ_BYTES: Final = 1024 * 1024


def by_spark(file: Path) -> tuple[int, str] | None:
    """Return (bytes, checksum) as Spark left them in ``<file>.crc``; None when it did not, or the note is torn."""
    stored = store_of(file).read(file.with_name(f"{file.name}.crc"))
    if stored is None:
        return None
    try:
        note = json.loads(stored.content)
        if note["algorithm"] != "CRC32C":
            return None
        return int(note["mainFileSize"]), f"{_CRC32C}:{int(note['value']) & 0xFFFFFFFF:08x}"
    except (ValueError, KeyError, TypeError):
        return None


def by_hadoop(file: Path, size: int) -> str | None:
    """Return the checksum as Hadoop left it in ``.<file>.crc``; None when it did not, or it is of another size.

    :param size: bytes of the file
    """
    stored = store_of(file).read(file.with_name(f".{file.name}.crc"))
    note = stored.content if stored is not None else b""
    if not note.startswith(_HADOOP_HEADER) or len(note) != len(_HADOOP_HEADER) + 4 * -(-size // _CHUNK_BYTES):
        return None
    return f"{_CHUNKED}:{zlib.crc32(note[len(_HADOOP_HEADER) :]):08x}"


def left_by_writers(file: Path, size: int) -> str | None:
    """Return a checksum that was made when the file was written; None when there is none.

    :param size: bytes of the file
    """
    noted = by_spark(file)
    return noted[1] if noted is not None and noted[0] == size else by_hadoop(file, size)


def read(file: Path, like: str = _CRC32) -> str:
    """Read a whole file and return its checksum.

    :param like: a checksum, or the name of its algorithm
    :raises RefusedError: when it is of an unknown algorithm, or its package is missing
    """
    algorithm = like.partition(":")[0]
    if algorithm not in (_CRC32C, _CRC32, _CHUNKED):
        raise RefusedError(f"{file}: checksum {like!r} is of an unknown algorithm; upgrade the package")
    total = 0
    sums = bytearray()
    with store_of(file).reading(file) as opened:
        while piece := opened.read(_READ_BYTES):
            if algorithm == _CRC32C:
                total = _crc32c(piece, total)
            elif algorithm == _CRC32:
                total = zlib.crc32(piece, total)
            else:
                view = memoryview(piece)
                chunks = [
                    zlib.crc32(view[start : start + _CHUNK_BYTES]) for start in range(0, len(piece), _CHUNK_BYTES)
                ]
                sums += struct.pack(f">{len(chunks)}I", *chunks)
    return f"{algorithm}:{zlib.crc32(sums) if algorithm == _CHUNKED else total:08x}"


def _crc32c(piece: bytes, total: int) -> int:
    try:
        from crc32c import crc32c
    except ImportError:
        raise RefusedError(
            "Spark's checksums are CRC-32C, which needs the package crc32c: install airflow-provider-exactlyonce[spark]"
        ) from None
    return int(crc32c(piece, total))
