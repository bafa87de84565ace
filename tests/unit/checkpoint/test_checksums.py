"""A file's checksum, and what can't be known of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.checkpoint import checksums
from airflow_provider_exactlyonce.exceptions import RefusedError


@pytest.mark.parametrize("content", [b"", b"x"])
def test_an_algorithm_of_a_later_release_is_not_taken_for_a_damaged_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "1.delta"
    file.write_bytes(content)
    with pytest.raises(RefusedError, match="checksum 'crc64:00000000' is of an unknown algorithm; upgrade the package"):
        checksums.read(file, "crc64:00000000")
