"""Makes a lineage of a copied checkpoint: a fresh directory with a query id of its own, which then becomes current.

A checkpoint is never truncated in place: Spark would read newer state files that are left behind. What is killed on the
way leaves a directory whose name begins with a dot; it is never taken for a lineage, and the next restore or rescale
removes it. So it does with a lineage that became current and was never started.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.control import json_store
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.control.lease import Hold
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError
from airflow_provider_exactlyonce.storage.opening import store_of

_UNFINISHED: Final = ".unfinished-"
#: Written under a new name and never changed, so that a lineage can share it with the savepoint.
_STATE_DATA: Final = re.compile(r"state/.*\.(sst|log|zip|changelog|delta|snapshot|crc)")
#: In ``_metadata/v2``, what comes before this is where the checkpoint was when it was written.
_SCHEMA_FILE: Final = re.compile(r'[^"\\]*(/state/\d+/_stateSchema/)')


def make(
    target: Path, source: Path, paths: Iterable[str], lineage: Lineage, texts: Mapping[str, str] | None = None
) -> None:
    """Make a new lineage of a whole checkpoint, by rename.

    :param target: the lineage's directory; must not exist
    :param source: the checkpoint; only read
    :param paths: of its files, relative to it
    :param lineage: what the new lineage remembers; its id is Spark's query id
    :param texts: {path: text} of files that it has besides
    """
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    unfinished = target.with_name(f"{_UNFINISHED}{target.name}")
    shutil.rmtree(unfinished, ignore_errors=True)  # of one that was killed
    _copy(unfinished / "checkpoint", source, paths, lineage.id, place=target / "checkpoint")
    for path, text in (texts or {}).items():
        (unfinished / "checkpoint" / path).parent.mkdir(parents=True, exist_ok=True)
        (unfinished / "checkpoint" / path).write_text(text)
    json_store.write(unfinished / "lineage.json", lineage.document())
    _flush(unfinished)
    failpoints.reach("restore-copied")
    os.rename(unfinished, target)
    store_of(target).flush([target.parent])
    failpoints.reach("restore-renamed")


def work_copy(directory: Path, source: Path, paths: Iterable[str], lineage_id: str) -> Path:
    """Copy a whole checkpoint to be worked on, where nobody takes it for a lineage; returns the copy.

    :param directory: where lineages are
    :param lineage_id: Spark's query id of the copy
    """
    checkpoint = directory / f"{_UNFINISHED}work-{lineage_id}" / "checkpoint"
    _copy(checkpoint, source, paths, lineage_id, place=checkpoint)
    return checkpoint


def switch(home: Home, lineage: Lineage, hold: Hold) -> None:
    """Make a lineage the one that the next start runs; the one that ran last is refused from then on.

    :param hold: of the pipeline, which is stopped
    :raises AlreadyRunningError: when somebody else has taken the pipeline over; the lineage is removed then
    """
    failpoints.reach("restore-switching")
    try:
        with hold.sure():
            home.use(lineage.id)
            failpoints.reach("restore-switched")
            abandoned = home.lineage(str(lineage.parent))
            if abandoned is not None:
                home.remember(replace(abandoned, abandoned_for=lineage.id))
            doomed = [_doom(directory) for directory in _unstarted(home, lineage)]
    except AlreadyRunningError:
        shutil.rmtree(home.lineages / lineage.id, ignore_errors=True)
        raise
    for directory in doomed:
        shutil.rmtree(directory)


def _unstarted(home: Home, lineage: Lineage) -> list[Path]:
    """Return what was made before this one and nobody has started: no run has claimed the pipeline since."""
    unstarted = []
    for name in store_of(home.lineages).names(home.lineages):
        candidate = home.lineage(name)
        if candidate is None or candidate.id == lineage.id or candidate.parent is None:
            continue
        if (candidate.parent_run, candidate.parent_commit) == (lineage.parent_run, lineage.parent_commit):
            unstarted.append(home.lineages / name)
    return unstarted


def _doom(directory: Path) -> Path:
    """Give what is going to be removed a name that nobody takes for anything else; returns it.

    Removing may take long, and who does it may be frozen and go on when a successor has made a lineage of that name.
    """
    name = directory.name.removeprefix(_UNFINISHED)
    return directory.rename(directory.with_name(f"{_UNFINISHED}removed-{uuid.uuid4().hex[:8]}-{name}"))


def _copy(target: Path, source: Path, paths: Iterable[str], lineage_id: str, *, place: Path) -> None:
    """Copy a checkpoint.

    :param place: where it will be when Spark opens it
    """
    target.mkdir(parents=True, exist_ok=True)
    store = store_of(target)
    for path in paths:
        if path != "metadata":
            store.copy(source / path, target / path, final=_STATE_DATA.fullmatch(path) is not None)
    (target / "metadata").write_text(json.dumps({"id": lineage_id}, separators=(",", ":")))
    _rewrite_paths(target, place)


def unfinished(directory: Path) -> list[Path]:
    """Return what killed restores and rescales have left in a directory."""
    return [directory / name for name in store_of(directory).names(directory) if name.startswith(_UNFINISHED)]


def remove_unfinished(directory: Path, hold: Hold | None) -> None:
    """Remove what killed restores and rescales have left in a directory.

    :param hold: of the pipeline, so that nobody else is at work there; None where something else sees to that
    :raises AlreadyRunningError: when somebody else is
    """
    with hold.sure() if hold is not None else nullcontext():
        doomed = [_doom(leftover) for leftover in unfinished(directory)]
    for leftover in doomed:
        shutil.rmtree(leftover)


def _rewrite_paths(checkpoint: Path, final: Path) -> None:
    """Make the state's metadata name the schema files of this copy: Spark has written absolute paths into it."""
    for file in checkpoint.glob("state/*/_metadata/v2/*"):
        text = _SCHEMA_FILE.sub(lambda match: f"file:{final}{match[1]}", file.read_text())
        file.write_text(text)


def _flush(directory: Path) -> None:
    places: list[Path] = []
    for folder, _, names in os.walk(directory):
        files = (Path(folder, name) for name in names)
        places += (file for file in files if file.stat().st_nlink == 1)  # a savepoint has flushed what it shares
        places.append(Path(folder))
    store_of(directory).flush(places)
