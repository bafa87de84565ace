"""Makes a lineage of a copied checkpoint: a fresh directory with a query id of its own.

A checkpoint is never truncated in place: Spark would read newer state files that are left behind. What is killed on the
way leaves a directory whose name begins with a dot; it is never taken for a lineage, and the next restore removes it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.control import documents
from airflow_provider_exactlyonce.control.home import Home, Lineage

_UNFINISHED: Final = ".restore-"
#: In ``_metadata/v2``, what comes before this is where the checkpoint was when it was written.
_SCHEMA_FILE: Final = re.compile(r'[^"\\\\]*(/state/\d+/_stateSchema/)')


def make(home: Home, source: Path, lineage: Lineage) -> Path:
    """Copy a checkpoint into a new lineage of a home; returns the lineage's directory.

    :param source: a whole checkpoint at one batch; only read
    :param lineage: what the new lineage remembers; its id is Spark's query id
    """
    home.lineages.mkdir(parents=True, exist_ok=True, mode=0o700)
    return make_at(home.lineages / lineage.id, source, lineage)


def make_at(target: Path, source: Path, lineage: Lineage) -> Path:
    """Copy a checkpoint into a new lineage at any place, by rename; returns its directory.

    :param target: must not exist
    """
    unfinished = target.with_name(f"{_UNFINISHED}{target.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    checkpoint = unfinished / "checkpoint"
    shutil.copytree(source, checkpoint, ignore=shutil.ignore_patterns(".*.crc"))
    (checkpoint / "metadata").write_text(json.dumps({"id": lineage.id}, separators=(",", ":")))
    _rewrite_paths(checkpoint, target / "checkpoint")
    documents.write(unfinished / "lineage.json", lineage.document())
    _flush(unfinished)
    failpoints.reach("restore-copied")
    os.rename(unfinished, target)
    _flush_directory(target.parent)
    failpoints.reach("restore-renamed")
    return target


def remove_unfinished(directory: Path) -> None:
    """Remove what killed restores have left in a directory."""
    for left in directory.glob(f"{_UNFINISHED}*") if directory.is_dir() else ():
        shutil.rmtree(left)


def _rewrite_paths(checkpoint: Path, final: Path) -> None:
    """Make the state's metadata name the schema files of this copy: Spark has written absolute paths into it."""
    for file in checkpoint.glob("state/*/_metadata/v2/*"):
        text = _SCHEMA_FILE.sub(lambda found: f"file:{final}{found[1]}", file.read_text())
        file.unlink()  # it may be a link to the original
        file.write_text(text)


def _flush(directory: Path) -> None:
    """Flush files and directories to the disk."""
    for folder, _, names in os.walk(directory):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                os.fsync(file.fileno())
        _flush_directory(Path(folder))


def _flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
