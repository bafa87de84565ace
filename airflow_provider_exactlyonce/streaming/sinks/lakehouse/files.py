"""The files of a table beside its metadata: the tasks' files, and the sink's own notes."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from airflow_provider_exactlyonce.files import flush, make_directory, replacing

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_BUFFER_BYTES: Final = 2**20
_READABLE: Final = 0o644  # for the table's auditors, too


class TableFiles(ABC):
    """Files by name: on this machine's file systems by their paths, in another store through Arrow.

    Such a store answers a write when it is durable; on this machine we wait for the disk.
    """

    @abstractmethod
    def local(self, name: str) -> Path | None:
        """Return the path of a file or folder on this machine's file systems, None in another store."""

    @abstractmethod
    def remote(self, name: str) -> tuple[FileSystem | Any, str]:
        """Return the store of a file or folder, and its path there."""

    def above(self, path: Path) -> Iterable[Path]:
        """Return the folders that are flushed with a file on this machine, so that it is found again."""
        return (path.parent,)

    def place(self, name: str) -> str:
        """Return the path or URL of a file, for messages."""
        return name

    def replace(self, name: str, content: bytes) -> None:
        """Write a whole file durably, in place of an existing one, if any."""
        if (path := self.local(name)) is None:
            with self.open_new(name) as file:
                file.write(content)
        else:
            make_directory(path.parent)
            with replacing(path, mode=_READABLE) as file:
                file.write(content)

    def read(self, name: str) -> bytes:
        """Return a file's content.

        :raises FileNotFoundError: when there is none
        """
        with self.open(name) as file:
            return file.read()

    def below(self, folder: str) -> list[str]:
        """Return the names of all files below a folder, in order; none when it does not exist."""
        if (root := self.local(folder)) is not None:
            files = (path for path in root.rglob("*") if path.is_file())
            return sorted(f"{folder}/{path.relative_to(root).as_posix()}" for path in files)
        from pyarrow.fs import FileSelector, FileType

        system, place = self.remote(folder)
        entries = system.get_file_info(FileSelector(place, allow_not_found=True, recursive=True))
        return sorted(folder + entry.path.removeprefix(place) for entry in entries if entry.type == FileType.File)

    def open_new(self, name: str) -> BinaryIO:
        """Open a file to write; it is there when it was closed and :meth:`keep` has returned."""
        if (path := self.local(name)) is not None:
            make_directory(path.parent)
            return path.open("xb")
        system, place = self.remote(name)
        # Without a buffer pyarrow passes on what delta-rs does not take.
        return system.open_output_stream(place, buffer_size=_BUFFER_BYTES)  # type: ignore[no-any-return]

    def keep(self, name: str) -> None:
        """Make a file that was written and closed outlive a loss of power."""
        if (path := self.local(name)) is not None:
            flush(path)
            for folder in self.above(path):
                flush(folder)

    def open(self, name: str) -> BinaryIO:
        """Open a file to read."""
        if (path := self.local(name)) is not None:
            return path.open("rb")
        system, place = self.remote(name)
        return system.open_input_file(place)  # type: ignore[no-any-return]

    def size(self, name: str) -> int | None:
        """Return a file's size in bytes, None when there is none."""
        if (path := self.local(name)) is not None:
            try:
                return path.stat().st_size
            except FileNotFoundError:
                return None
        system, place = self.remote(name)
        return system.get_file_info(place).size  # type: ignore[no-any-return]

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        if (path := self.local(name)) is not None:
            path.unlink(missing_ok=True)
            return
        system, place = self.remote(name)
        try:
            system.delete_file(place)
        except OSError:  # Arrow leaves a mark of the folder in S3, which not every store takes
            if self.size(name) is not None:
                raise

    def remove_below(self, folder: str) -> None:
        """Remove all files below a folder."""
        for name in self.below(folder):
            self.remove(name)
        if (path := self.local(folder)) is not None:
            shutil.rmtree(path, ignore_errors=True)  # a straggler may write into it; only folders are left otherwise
