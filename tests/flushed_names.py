"""Which names a loss of power leaves: those in directories that were flushed afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest


class FlushedNames:
    """Notes the names in each directory that is flushed from now on.

    :param root: what is there below it is on disk
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._names = {root, *root.rglob("*")}
        fsync = os.fsync

        def noting(descriptor: int) -> None:
            fsync(descriptor)
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            self._names.update(path.iterdir() if path.is_dir() else ())

        monkeypatch.setattr(os, "fsync", noting)

    def lost(self, files: Iterable[Path]) -> set[Path]:
        """Return which of these files and of the directories above them would not be found again."""
        return {path for file in files for path in (file, *file.parents) if self._root in path.parents} - self._names
