"""The notes of attempts, as a store has them that shows a file before it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import LocalFileSystem
from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.attempts import AttemptNote, Attempts
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.files import TableFiles

WHOLE = AttemptNote(attempt="whole", commit=3, run=2, table="t")


class StoredFiles(TableFiles):
    @override
    def local(self, name: str) -> Path | None:
        return None

    @override
    def remote(self, name: str) -> tuple[Any, str]:
        return LocalFileSystem(), name


class LocalFiles(StoredFiles):
    @override
    def local(self, name: str) -> Path | None:
        return Path(name)


@pytest.mark.parametrize("length", [0, 1, 40, len(WHOLE.encoded()) - 1])
def test_a_note_that_was_cut_off_is_one_of_which_nobody_knows_whether_it_was_tried(tmp_path: Path, length: int) -> None:
    (tmp_path / "torn.json").write_bytes(WHOLE.encoded()[:length])
    attempts = Attempts(StoredFiles(), notes=str(tmp_path), data="data", can_be_torn=True)
    attempts.write(WHOLE)
    torn, whole = attempts.notes()
    assert whole == WHOLE
    assert (torn.attempt, torn.was_tried) == ("torn", True)
    assert torn.table == "", "no table's: a claim forgets the note, and leaves files that may be in the table"


@pytest.mark.parametrize(
    ("files", "can_be_torn", "content"),
    [
        (StoredFiles(), True, b"{}"),
        (StoredFiles(), True, b'{"schema":99}'),
        (StoredFiles(), False, b""),
        (LocalFiles(), True, b""),
    ],
)
def test_any_other_note_that_can_not_be_read_is_refused(
    tmp_path: Path, files: TableFiles, can_be_torn: bool, content: bytes
) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(RefusedError):
        Attempts(files, notes=str(tmp_path), data="data", can_be_torn=can_be_torn).notes()
