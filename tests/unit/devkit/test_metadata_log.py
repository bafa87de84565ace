"""Whether a broker counts as alive, from metadata logs written here by hand."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.devkit.metadata_log import METADATA_FOLDER, is_unfenced

LOG = "00000000000000000000.log"
CONTROL, DATA = 0x20, 0


def signed(value: int) -> bytes:
    """Encode in zigzag; one byte suffices for what is written here."""
    encoded = value << 1
    return bytes([encoded]) if encoded < 0x80 else bytes([encoded & 0x7F | 0x80, encoded >> 7])


def text(value: str) -> bytes:
    return bytes([len(value) + 1]) + value.encode()


def registration(broker: int = 1, *, fenced: bool = True, version: int = 4) -> bytes:
    endpoint = text("PLAINTEXT") + text("localhost") + struct.pack(">Hh", 9092, 0) + b"\0"
    feature = text("transaction.version") + struct.pack(">hh", 0, 2) + b"\0"
    body = struct.pack(">i", broker) + (b"\0" if version >= 2 else b"") + bytes(16) + struct.pack(">q", 7)
    body += b"\2" + endpoint + b"\2" + feature + b"\0" + struct.pack(">?", fenced)
    return bytes([1, 0, version]) + body + (b"\0" if version >= 1 else b"") + b"\0"


def change(broker: int = 1, fenced: int | None = None) -> bytes:
    """Change a registration: 1 fences, -1 unfences, None changes something else."""
    tags = b"\1\1\1\1" if fenced is None else b"\1\0\1" + struct.pack(">b", fenced)
    return bytes([1, 17, 0]) + struct.pack(">iq", broker, 7) + tags


def batch(base: int, *values: bytes, attributes: int = DATA) -> bytes:
    records = b""
    for number, value in enumerate(values):
        record = b"\0" + signed(0) + signed(number) + b"\1" + signed(len(value)) + value + signed(0)
        records += signed(len(record)) + record
    header = struct.pack(
        ">qiibIhiqqqhii", base, 49 + len(records), 0, 2, 0, attributes, 0, 0, 0, -1, -1, -1, len(values)
    )
    return header + records


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / METADATA_FOLDER
    folder.mkdir()
    return folder


def write(folder: Path, *batches: bytes, name: str = LOG) -> None:
    (folder / name).write_bytes(b"".join(batches))


def test_a_storage_without_a_metadata_log_has_no_living_broker(tmp_path: Path) -> None:
    assert not is_unfenced(tmp_path, 1)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_a_broker_that_only_registered_is_fenced_until_it_is_unfenced(folder: Path, version: int) -> None:
    write(folder, batch(0, registration(version=version)))
    assert not is_unfenced(folder.parent, 1)
    write(folder, batch(0, registration(version=version)), batch(1, change(fenced=-1)))
    assert is_unfenced(folder.parent, 1)


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        (change(fenced=1), False),
        (change(fenced=None), True),
        (change(fenced=0), True),
        (change(broker=2, fenced=1), True),
        (registration(broker=2), True),
        (registration(), False),
        (bytes([1, 20, 0, 0]), True),
    ],
    ids=["fenced", "other change", "no change", "other broker", "other registration", "registered anew", "no-op"],
)
def test_the_last_record_about_the_broker_decides(folder: Path, later: bytes, expected: bool) -> None:
    write(folder, batch(0, registration(), change(fenced=-1)), batch(2, later))
    assert is_unfenced(folder.parent, 1) is expected


def test_control_batches_and_a_torn_end_are_passed_over(folder: Path) -> None:
    torn = batch(3, change(fenced=1))[:-4]
    write(folder, batch(0, b"\0", attributes=CONTROL), batch(1, registration(), change(fenced=-1)), torn)
    assert is_unfenced(folder.parent, 1)


def test_a_snapshot_replaces_what_was_logged_before_it(folder: Path) -> None:
    write(
        folder, batch(0, registration(), change(fenced=-1)), batch(2, change(fenced=1)), batch(5, bytes([1, 20, 0, 0]))
    )
    write(folder, batch(0, registration(fenced=True)), name="00000000000000000001-0000000001.checkpoint")
    write(folder, batch(0, registration(fenced=False)), name="00000000000000000004-0000000001.checkpoint")
    assert is_unfenced(folder.parent, 1)
    write(folder, batch(0, registration(), change(fenced=-1)), batch(5, change(fenced=1)))
    assert not is_unfenced(folder.parent, 1)
