"""The common part of tables' audits: the history of a sink's commits in a table, and its present files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_exactlyonce.streaming.sinks.lakehouse.files import TableFiles
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry


@dataclass(frozen=True, kw_only=True)
class ListedFile:
    """A table's entry of one of its files.

    :param size: bytes
    :param rows: None when it is not recorded
    """

    name: str
    size: int
    rows: int | None
    is_parquet: bool = True


@dataclass
class TableHistory:
    """The history in the kept versions of a table, from the oldest on.

    :ivar entries: the sink's commits
    :ivar commits: of each file with rows of the sink only, their commits, or more when others have written it
    :ivar since: the commit from which on they have all; None when that is the oldest that they have
    :ivar removed: of each file that was removed from the table and not put back, the version that removed it
    :ivar findings: contradictions within the table
    """

    entries: dict[int, SinkEntry] = field(default_factory=dict)
    commits: dict[str, frozenset[int]] = field(default_factory=dict)
    since: int | None = None
    removed: dict[str, str] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    @property
    def oldest(self) -> int:
        """The oldest commit that the kept versions cover, 0 for all."""
        return min(self.entries, default=0) if self.since is None else self.since

    def take(self, version: str, entry: SinkEntry) -> None:
        """Note a commit of the sink.

        :param version: the version that has it, for messages
        """
        if entry.commit in self.entries:
            self.findings.append(f"commit {entry.commit}: {version} has it once more")
        if self.entries and entry.commit < max(self.entries):
            self.findings.append(f"commit {entry.commit}: {version} comes after commit {max(self.entries)}")
        self.entries[entry.commit] = entry

    def count(self, version: str, entry: SinkEntry, expected: int, counted: int) -> None:
        """Compare the row count of a commit's version with its files'."""
        if counted != expected:
            self.findings.append(f"commit {entry.commit}: {version} says {expected} rows, and its files have {counted}")

    def hold(self, files: Iterable[str], held: Sequence[frozenset[int]]) -> None:
        """Note the commits of the rows in files, unless other writers' rows may be among them.

        :param held: the commits of each source of these rows, empty for another writer
        """
        if held and all(held):
            commits = frozenset().union(*held)
            self.commits.update(dict.fromkeys(files, commits))

    def held(self, files: Iterable[str]) -> list[frozenset[int]]:
        """Return the commits of the rows in each file, empty where other writers' rows may be."""
        return [self.commits.get(file, frozenset()) for file in files]

    def exchange(self, version: str, removed: Sequence[str], added: Sequence[str]) -> None:
        """Note which files a version takes out of the table and which it puts in.

        A file can be taken out once. A version that does it again was made of an older one, as if nothing had happened
        since: the rows of the file are in the table twice when both have written them anew.
        """
        removed_again = [file for file in removed if file in self.removed]
        for earlier in dict.fromkeys(self.removed[file] for file in removed_again):
            files = [file for file in removed_again if self.removed[file] == earlier]
            self.findings.append(
                f"{version} has taken out {len(files)} files that {earlier} had taken out before, such as {files[0]}: "
                "what both have written in their place is in the table twice"
            )
        self.removed.update(dict.fromkeys(removed, version))
        for file in added:
            self.removed.pop(file, None)

    def lose(self, version: str, files: Iterable[str], rows: int | None = None) -> None:
        """Note that another writer's version has changed rows of files, or removed them.

        :param rows: how many of each it has deleted beside the file; None when the file itself was taken out
        """
        change = "changed or removed rows" if rows is None else f"deleted {rows} rows"
        for file in files:
            if commits := self.commits.get(file):
                self.findings.append(f"{_shown(commits)}: {version} has {change} of {file}")

    def doubt(self, version: str, files: Iterable[str], what: str) -> None:
        """Note that another writer's version may have deleted unknown rows of files.

        :param what: the deletes that can't be read
        """
        if commits := frozenset[int]().union(*self.held(files)):
            self.findings.append(
                f"{_shown(commits)}: {version} has deleted rows by {what}, so it is not known whether theirs are among "
                "them"
            )

    def rewrite(self, version: str, before: Sequence[int | None], after: Sequence[int | None]) -> None:
        """Compare the row counts of a version's rewritten files with the replaced files'; None where one is unknown."""
        if None not in (*before, *after) and sum(filter(None, before)) != sum(filter(None, after)):
            self.findings.append(
                f"{version} has {sum(filter(None, after))} rows instead of {sum(filter(None, before))}, and says "
                "that it has changed none"
            )

    def differences(
        self, files: TableFiles, listed: Iterable[ListedFile], *, verifies_checksums: bool
    ) -> Iterator[str]:
        """Yield the files that differ from their table's entries.

        :param verifies_checksums: read all rows, and verify the checksums of the pages that have one
        """
        for file in listed:
            if difference := _difference(files, file, verifies_checksums):
                commits = self.commits.get(file.name)
                prefix = f"{_shown(commits)}: " if commits else ""
                yield f"{prefix}{files.place(file.name)}: {difference}"


def _shown(commits: frozenset[int]) -> str:
    return f"commit {min(commits)}" if len(commits) == 1 else f"commits {min(commits)} to {max(commits)}"


def _difference(files: TableFiles, file: ListedFile, verifies_checksums: bool) -> str | None:
    """Return how a file differs from its table's entry, None when it does not."""
    size = files.size(file.name)
    if size is None:
        return f"a file of the table with {file.rows} rows is missing"
    if size != file.size:
        return f"it has {size} bytes, and the table says {file.size}"
    if not file.is_parquet:
        return None
    with files.open(file.name) as opened:
        try:
            rows = _count(opened, verifies_checksums)
        except (OSError, pa.ArrowException) as error:
            if getattr(error, "errno", None) is not None:  # of the store: the file's state is unknown
                raise
            return f"it can't be read: {error}"
    if file.rows is not None and rows != file.rows:
        return f"it has {rows} rows, and the table says {file.rows}"
    return None


def _count(opened: BinaryIO, verifies_checksums: bool) -> int:
    """Return how many rows a file has."""
    parquet = pq.ParquetFile(opened, page_checksum_verification=verifies_checksums)
    if verifies_checksums:
        return sum(rows.num_rows for rows in parquet.iter_batches())
    return int(parquet.metadata.num_rows)
