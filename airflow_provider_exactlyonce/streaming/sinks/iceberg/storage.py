"""The files of a table beside its metadata: what tasks write, and the sink's own notes. Names are locations."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from pyarrow.fs import FileSelector, FileSystem, FileType
from pyiceberg.io.pyarrow import PyArrowFileIO

from airflow_provider_exactlyonce.files import flush, replacing

if TYPE_CHECKING:
    from pyiceberg.table import Table


class TableFiles:
    """The store that a table is in, through Arrow, by the properties that pyiceberg has for it.

    :param properties: of pyiceberg's client
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties: Final = properties
        self._io: Final = PyArrowFileIO(dict(properties))

    def replace(self, name: str, content: bytes) -> None:
        """Put a whole file in the place of what is there, if anything, durably."""
        if (path := self._local(name)) is not None:
            self._make_folder(path.parent)
            with replacing(path) as file:
                file.write(content)
            return
        with self.open_new(name) as file:
            file.write(content)

    def read(self, name: str) -> bytes:
        """Return a file's content.

        :raises FileNotFoundError: when there is none
        """
        with self.open(name) as file:
            return file.read()

    def below(self, folder: str) -> list[str]:
        """Return all files below a location; none when there are none."""
        system, path = self._at(folder)
        entries = system.get_file_info(FileSelector(path, allow_not_found=True, recursive=True))
        return sorted(folder + entry.path.removeprefix(path) for entry in entries if entry.type == FileType.File)

    def open_new(self, name: str) -> BinaryIO:
        """Open a file to write; it is there when it was closed and :meth:`keep` has returned."""
        if (path := self._local(name)) is not None:
            self._make_folder(path.parent)
            return path.open("xb")
        system, path_there = self._at(name)
        return system.open_output_stream(path_there)  # type: ignore[no-any-return]

    def keep(self, name: str) -> None:
        """Make a file that was written and closed outlive a loss of power. A store answers when it is durable."""
        if (path := self._local(name)) is not None:
            flush(path)
            flush(path.parent)

    def keep_metadata(self, table: Table) -> None:
        """Make what a commit has written beside its data outlive a loss of power; pyiceberg does not wait for disks."""
        snapshot = table.metadata.current_snapshot()
        if self._local(table.metadata_location) is None:
            return
        self.keep(table.metadata_location)
        if snapshot is not None:
            self.keep(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                if manifest.added_snapshot_id == snapshot.snapshot_id:
                    self.keep(manifest.manifest_path)

    def open(self, name: str) -> BinaryIO:
        """Open a file to read."""
        system, path = self._at(name)
        return system.open_input_file(path)  # type: ignore[no-any-return]

    def size(self, name: str) -> int | None:
        """Return a file's size in bytes, None when there is none."""
        system, path = self._at(name)
        return system.get_file_info(path).size  # type: ignore[no-any-return]

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        system, path = self._at(name)
        try:
            system.delete_file(path)
        except OSError:  # Arrow leaves a mark of the folder in S3, which not every store takes
            if self.size(name) is not None:
                raise

    def remove_below(self, folder: str) -> None:
        """Remove all files below a location."""
        for name in self.below(folder):
            self.remove(name)
        if (path := self._local(folder)) is not None:
            with suppress(OSError):  # a straggler may write into it; it is empty otherwise
                path.rmdir()

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        flush(folder.parent)

    def _at(self, name: str) -> tuple[FileSystem | Any, str]:
        scheme, host, path = self._io.parse_location(name, self._io.properties)
        return self._io.fs_by_scheme(scheme, host), path

    def _local(self, name: str) -> Path | None:
        """Return the path on this machine's file systems, None for another store."""
        scheme, _, path = self._io.parse_location(name, self._io.properties)
        return Path(path) if scheme == "file" else None
