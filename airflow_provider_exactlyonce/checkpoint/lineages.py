"""Makes a lineage of a copied checkpoint: a fresh directory with a query id of its own.

A checkpoint is never truncated in place: Spark would read newer state files that are left behind. What is killed on the
way leaves a directory whose name begins with a dot; it is never taken for a lineage, and the next restore removes it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.checkpoint import storage
from airflow_provider_exactlyonce.control import documents
from airflow_provider_exactlyonce.control.home import Lineage

_UNFINISHED: Final = ".restore-"
#: Written under a new name and never changed, so that a lineage can share it with the savepoint.
_STATE_DATA: Final = re.compile(r"state/.*\.(sst|log|zip|changelog|delta|snapshot|crc)")
#: In ``_metadata/v2``, what comes before this is where the checkpoint was when it was written.
_SCHEMA_FILE: Final = re.compile(r'[^"\\]*(/state/\d+/_stateSchema/)')


def make(target: Path, source: Path, paths: Iterable[str], lineage: Lineage) -> None:
    """Make a new lineage of a whole checkpoint, by rename.

    :param target: the lineage's directory; must not exist
    :param source: the checkpoint; only read
    :param paths: of its files, relative to it
    :param lineage: what the new lineage remembers; its id is Spark's query id
    """
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    unfinished = target.with_name(f"{_UNFINISHED}{target.name}")
    checkpoint = unfinished / "checkpoint"
    for path in paths:
        if path == "metadata":
            continue
        (checkpoint / path).parent.mkdir(parents=True, exist_ok=True)
        (storage.link if _STATE_DATA.fullmatch(path) else storage.copy)(source / path, checkpoint / path)
    (checkpoint / "metadata").write_text(json.dumps({"id": lineage.id}, separators=(",", ":")))
    _rewrite_paths(checkpoint, target / "checkpoint")
    documents.write(unfinished / "lineage.json", lineage.document())
    _flush(unfinished)
    failpoints.reach("restore-copied")
    os.rename(unfinished, target)
    storage.flush(target.parent)
    failpoints.reach("restore-renamed")


def remove_unfinished(directory: Path) -> None:
    """Remove what killed restores have left in a directory."""
    for left in directory.glob(f"{_UNFINISHED}*") if directory.is_dir() else ():
        shutil.rmtree(left)


def _rewrite_paths(checkpoint: Path, final: Path) -> None:
    """Make the state's metadata name the schema files of this copy: Spark has written absolute paths into it."""
    for file in checkpoint.glob("state/*/_metadata/v2/*"):
        text = _SCHEMA_FILE.sub(lambda found: f"file:{final}{found[1]}", file.read_text())
        file.write_text(text)


def _flush(directory: Path) -> None:
    for folder, _, names in os.walk(directory):
        for name in names:
            file = Path(folder, name)
            if file.stat().st_nlink == 1:  # a savepoint has flushed what it shares
                storage.flush(file)
        storage.flush(Path(folder))
