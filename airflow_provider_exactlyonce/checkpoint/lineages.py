"""Makes a lineage of a copied checkpoint: a fresh directory with a query id of its own, which then becomes current.

A checkpoint is never truncated in place: Spark would read newer state files that are left behind. While a lineage is
made, and while one is removed, a mark lies beside it, ``.unfinished-<its name>``. What is killed on the way leaves
both; the next restore or rescale removes them. So it does with a lineage that became current and was never started.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.checkpoint.state import STATE_DATA
from airflow_provider_exactlyonce.control import json_store
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.control.lease import Hold
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError
from airflow_provider_exactlyonce.storage import trees
from airflow_provider_exactlyonce.storage.opening import hadoop_url, is_link, store_of

_UNFINISHED: Final = ".unfinished-"
_METADATA: Final = re.compile(r"state/[^/]+/_metadata/v2/[^/]+")
#: In them, what comes before this is where the checkpoint was when it was written.
_SCHEMA_FILE: Final = re.compile(r'[^"\\]*(/state/\d+/_stateSchema/)')


def make(
    target: Path, source: Path, paths: Iterable[str], lineage: Lineage, texts: Mapping[str, str] | None = None
) -> None:
    """Make a new lineage of a whole checkpoint.

    :param target: the lineage's directory; must not exist, unless it :func:`is_unfinished`
    :param source: the checkpoint; only read
    :param paths: of its files, relative to it
    :param lineage: the new lineage's document; its id is Spark's query id
    :param texts: {path: text} of files that it has besides
    """
    store = store_of(target)
    store.remove(target)  # of one that was killed
    _mark(target)
    checkpoint = target / "checkpoint"
    copied = _copy(checkpoint, source, paths, lineage.id)
    for path, text in (texts or {}).items():
        store.replace(checkpoint / path, text.encode())
    # What shares its bytes with a savepoint was flushed with it.
    store.flush([place for place in copied if not is_link(place)])
    json_store.write(target / "lineage.json", lineage.document())
    store.flush(trees.directories_of(target, copied))
    failpoints.reach("restore-copied")
    store.delete(_mark_of(target))
    failpoints.reach("restore-renamed")


def is_unfinished(directory: Path) -> bool:
    """Whether a lineage's directory is being made or removed, or was left by a process that was killed meanwhile."""
    return store_of(directory).facts(_mark_of(directory)) is not None


def work_copy(directory: Path, source: Path, paths: Iterable[str], lineage_id: str) -> Path:
    """Copy a whole checkpoint to work on, where it is not taken for a lineage; returns the copy.

    :param directory: where lineages are
    :param lineage_id: Spark's query id of the copy
    """
    checkpoint = directory / f"{_UNFINISHED}work-{lineage_id}" / "checkpoint"
    _copy(checkpoint, source, paths, lineage_id)
    return checkpoint


def switch(home: Home, lineage: Lineage, hold: Hold) -> None:
    """Make a lineage the one that the next start runs; the one that ran last is refused from then on.

    :param hold: of the pipeline, which is stopped
    :raises AlreadyRunningError: when another process has taken the pipeline over; the lineage is removed then
    """
    failpoints.reach("restore-switching")
    unstarted = _unstarted(home, lineage)  # before the lease is read: nothing of a successor is among them
    try:
        with hold.sure():
            home.switch(lineage.id, hold.pointer)
            failpoints.reach("restore-switched")
            abandoned = home.lineage(str(lineage.parent))
            if abandoned is not None:
                home.remember(replace(abandoned, abandoned_for=lineage.id))
            for directory in unstarted:
                _mark(directory)
    except AlreadyRunningError:
        remove(home.lineages / lineage.id)
        raise
    for directory in unstarted:
        remove(directory)


def _unstarted(home: Home, lineage: Lineage) -> list[Path]:
    """Return other lineages that no driver has started: no run has claimed the pipeline since they were made."""
    unstarted = []
    for name in store_of(home.lineages).names(home.lineages):
        candidate = home.lineage(name)
        if candidate is None or candidate.id == lineage.id or candidate.parent is None:
            continue
        if (candidate.parent_run, candidate.parent_commit) == (lineage.parent_run, lineage.parent_commit):
            unstarted.append(home.lineages / name)
    return unstarted


def _mark(directory: Path) -> None:
    """Mark a directory as no lineage."""
    store_of(directory).replace(_mark_of(directory), b"")


def _mark_of(directory: Path) -> Path:
    return directory.with_name(f"{_UNFINISHED}{directory.name}")


def _copy(checkpoint: Path, source: Path, paths: Iterable[str], lineage_id: str) -> list[Path]:
    """Copy a checkpoint; returns the places of its files."""
    store, copied = store_of(checkpoint), [checkpoint / "metadata"]
    for path in paths:
        if path == "metadata":
            continue
        if _METADATA.fullmatch(path):  # Spark has written absolute paths into it
            store.replace(checkpoint / path, naming(checkpoint, trees.bytes_of(source / path).decode()).encode())
        else:
            trees.copy(source / path, checkpoint / path, final=STATE_DATA.fullmatch(path) is not None)
        copied.append(checkpoint / path)
    store.replace(checkpoint / "metadata", json.dumps({"id": lineage_id}, separators=(",", ":")).encode())
    return copied


def unfinished(directory: Path) -> list[Path]:
    """Return the remains of killed restores and rescales in a directory: marks, and working copies."""
    store = store_of(directory)
    remains = [directory / name for name in store.names(directory) if name.startswith(_UNFINISHED)]
    return [place for place in remains if store.facts(place) is not None or store.files(place)]


def remove_unfinished(directory: Path, hold: Hold | None) -> None:
    """Remove the remains of killed restores and rescales in a directory.

    :param hold: of the pipeline, so that no other process works there; None where the caller ensures that otherwise
    :raises AlreadyRunningError: when another process has taken the pipeline over
    """
    marks = unfinished(directory)  # before the lease is read, as in a switch
    with hold.sure() if hold is not None else nullcontext():
        pass
    for mark in marks:
        store_of(mark).remove(mark)  # a copy to work on, or what release 0.1.0 has left
        remove(mark.with_name(mark.name.removeprefix(_UNFINISHED)))


def remove(directory: Path) -> None:
    """Remove a lineage's directory: first ``lineage.json``, without which it is no lineage, last its mark."""
    store = store_of(directory)
    store.delete(directory / "lineage.json")
    store.remove(directory)
    store.delete(_mark_of(directory))


def naming(checkpoint: Path, text: str) -> str:
    """Return the text of a file below ``_metadata/v2`` of a checkpoint, adapted to another checkpoint with its copy.

    :param checkpoint: the other one
    """
    return _SCHEMA_FILE.sub(lambda match: f"{hadoop_url(checkpoint)}{match[1]}", text)
