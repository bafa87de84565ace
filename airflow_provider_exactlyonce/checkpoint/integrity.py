"""Which files a batch of a checkpoint needs, and whether they are whole.

A batch is whole when Spark can go on after it from its files alone. Sizes are compared for every file, contents with
the checksums that their writers left for those that were written shortly before the batch's commit: what a crash can
tear. A savepoint's own checksums cover all of them.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.checkpoint import checksums
from airflow_provider_exactlyonce.checkpoint.layout import BatchOffsets, Checkpoint, TornFileError
from airflow_provider_exactlyonce.checkpoint.state import TORN_ZIP, Defect, FileSet, StateDirectory
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.store import FileFacts
from airflow_provider_exactlyonce.storage.trees import bytes_of

#: A file that was written longer before the commit has long been on disk.
_RECENT_SECONDS: Final = 3600.0
QUERY_ID: Final = "metadata"
_LZ4_MAGIC: Final = b"LZ4Block"
#: What Java's LZ4 stream, Spark's default for deltas, snapshots and changelogs, ends with: a block of no bytes.
_LZ4_END: Final = _LZ4_MAGIC + b"\x15" + bytes(12)


@dataclass(frozen=True, kw_only=True)
class BatchFiles:
    """The files of a batch.

    :param files: relative to the checkpoint
    :param defects: files that are missing or torn, as far as names and sizes show
    """

    files: tuple[str, ...]
    defects: tuple[Defect, ...]


def files_of(checkpoint: Checkpoint, batch: int) -> BatchFiles:
    """Return the files that a restart after a batch needs, with the defects that names and sizes show."""
    needed = FileSet(files={QUERY_ID, f"offsets/{batch}", f"commits/{batch}"})
    if batch:
        needed.files.add(f"offsets/{batch - 1}")  # Spark takes from it where the batch after this one begins
    offsets = _entry(checkpoint, batch, needed)
    needed.files |= set(_source_files(checkpoint, offsets))
    ids = _state_ids(checkpoint, batch, needed)
    state = StateDirectory(checkpoint.path).needed(batch, ids)
    needed.files |= state.files
    needed.sizes |= state.sizes
    needed.defects += state.defects
    if any(path.endswith(".changelog") for path in state.files):  # later batches find their snapshot by these ids
        needed.files |= {f"commits/{number}" for number in ids}
    for path in sorted(needed.files):
        has_note = f"{path}.crc" in needed.files
        if reason := _size_defect(checkpoint.path / path, needed.sizes.get(path), has_note=has_note):
            needed.defects.append(Defect(path=path, reason=reason))
    first_defects: dict[str, Defect] = {}
    for defect in needed.defects:  # one defect a file: the first says most
        first_defects.setdefault(defect.path, defect)
    return BatchFiles(files=tuple(sorted(needed.files)), defects=tuple(first_defects.values()))


def defects_of(checkpoint: Checkpoint, batch: int, seen: dict[str, str | None] | None = None) -> list[Defect]:
    """Return the defects of a batch's files, contents included; empty when the batch is whole.

    :param seen: {path: defect of its content} of files that were read for other batches; new ones are added
    """
    seen = {} if seen is None else seen
    needed = files_of(checkpoint, batch)
    defects = list(needed.defects)
    defective = {defect.path for defect in defects}
    store = store_of(checkpoint.path)
    committed = store.facts(checkpoint.path / "commits" / str(batch))
    if committed is None:
        return defects
    for path in needed.files:
        if path in defective:
            continue
        facts = store.facts(checkpoint.path / path)
        if facts is not None and facts.modified < committed.modified - _RECENT_SECONDS:
            continue
        if path not in seen:
            seen[path] = _content_defect(checkpoint.path / path, facts)
        if reason := seen[path]:
            defects.append(Defect(path=path, reason=reason))
    return defects


def newest_whole(checkpoint: Checkpoint, *, known_query: bool = False) -> tuple[int | None, list[Defect]]:
    """Return the newest batch that is whole, None when there is none, and the defects of newer batches.

    :param known_query: the query id can be written again, so that its file need not be whole
    """
    defects: list[Defect] = []
    seen: dict[str, str | None] = {}
    for batch in reversed(checkpoint.batches("commits")):
        batch_defects = [
            defect for defect in defects_of(checkpoint, batch, seen) if not (known_query and defect.path == QUERY_ID)
        ]
        if not batch_defects:
            return batch, defects
        defects += [defect for defect in batch_defects if defect not in defects]
    return None, defects


def _content_defect(file: Path, facts: FileFacts | None) -> str | None:
    """Compare a file with its writer's checksum, or check it as a zip; None when it is whole or can't be checked."""
    if facts is None:
        return "is missing"
    expected = checksums.left_by_writers(file, facts.size)
    if expected is not None and (checksum := checksums.read(file, expected)) != expected:
        return f"is torn: its checksum is {checksum}, and {expected} was written"
    if expected is None and file.suffix == ".zip":
        try:
            with zipfile.ZipFile(io.BytesIO(bytes_of(file))) as archive:
                torn_member = archive.testzip()
        except TORN_ZIP as error:
            return f"is torn: {error}"
        return f"is torn: {torn_member} in it" if torn_member else None
    if expected is None and file.suffix in (".delta", ".snapshot", ".changelog"):
        data = bytes_of(file)
        if data.startswith(_LZ4_MAGIC) and not data.endswith(_LZ4_END):
            return "is truncated: it lacks its last block"
    return None


def _entry(checkpoint: Checkpoint, batch: int, needed: FileSet) -> BatchOffsets | None:
    """Read the small files, and note their defects."""
    newest = None
    for number in (batch - 1, batch) if batch else (batch,):
        try:
            newest = checkpoint.offsets(number)
        except TornFileError as error:
            newest = None
            needed.defects.append(Defect(path=f"offsets/{number}", reason=f"is torn: {error}"))
    try:
        if checkpoint.query_id() is None:
            needed.defects.append(Defect(path=QUERY_ID, reason="is missing"))
    except TornFileError as error:
        needed.defects.append(Defect(path=QUERY_ID, reason=f"is torn: {error}"))
    return newest


def _state_ids(
    checkpoint: Checkpoint, batch: int, needed: FileSet
) -> dict[int, Mapping[int, tuple[frozenset[str], ...]]]:
    """Return the ids of state files, as the commits up to a batch have them."""
    ids = {}
    for number in checkpoint.batches("commits"):
        if number > batch:
            break
        try:
            commit = checkpoint.commit(number)
        except TornFileError as error:
            if number == batch:
                needed.defects.append(Defect(path=f"commits/{number}", reason=f"is torn: {error}"))
            continue
        if commit is not None and commit.state_ids is not None:
            ids[number] = commit.state_ids
    return ids


def _source_files(checkpoint: Checkpoint, offsets: BatchOffsets | None) -> Iterator[str]:
    """Yield the files of the sources; of a file source's log only the part read, so that batches keep their files."""
    positions = offsets.positions if offsets else []
    positions_by_source = {
        str(index): position for index, position in enumerate(positions) if isinstance(position, dict)
    }
    for source, position in positions_by_source.items():
        if any(isinstance(partitions, dict) for partitions in position.values()):
            yield f"sources/{source}/0"  # where a Kafka source began
    directory = checkpoint.path / "sources"
    store = store_of(directory)
    for source in store.names(directory):
        last = positions_by_source.get(source, {}).get("logOffset")
        for file in store.names(directory / source):
            number = file.removesuffix(".compact")
            if not file.startswith(".") and not (last is not None and number.isdecimal() and int(number) > last):
                yield f"sources/{source}/{file}"


def _size_defect(file: Path, expected: int | None, *, has_note: bool) -> str | None:
    facts = store_of(file).facts(file)
    if facts is None:
        return "is missing"
    size = facts.size
    if size == 0:
        return "is empty"
    noted = checksums.by_spark(file) if has_note else None
    expected = noted[0] if noted is not None else expected
    if expected is None or size == expected:
        return None
    return (
        f"is truncated: it has {size} bytes of {expected}" if size < expected else f"has {size} bytes, not {expected}"
    )
