"""Servers of tests that Maven has as archives, and a Java that is new enough for them."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from airflow_provider_exactlyonce.exceptions import MissingRequirementError
from airflow_provider_exactlyonce.jars.cache import cache_directory, exclusive
from airflow_provider_exactlyonce.jars.ivy import retrieve
from airflow_provider_exactlyonce.jars.java import java_version


@functools.cache
def newest_java(at_least: int) -> str | None:
    """Return a Java that is new enough: JAVA_HOME's, the PATH's, or the newest that a package has installed."""
    homes = [Path(home) for home in (os.environ.get("JAVA_HOME"),) if home]
    packaged = sorted(Path("/usr/lib/jvm").glob("*"), reverse=True)
    programs = [str(home / "bin" / "java") for home in (*homes, *packaged)] + [shutil.which("java") or ""]
    versions = {}
    for program in programs:
        if os.access(program, os.X_OK):
            try:
                versions[program] = java_version(program)
            except MissingRequirementError:
                continue
    best = max(versions, key=lambda program: versions[program], default=None)
    return best if best is not None and versions[best] >= at_least else None


def unpacked(name: str, dependencies: Path, sha256: str, arrange: Callable[[Path], Path]) -> Path:
    """Return where a server is in the per-user cache; fetch it first if it isn't there.

    :param name: of its folder there
    :param dependencies: an ``ivy.xml`` with nothing but its archive, a ``tar.gz``
    :param arrange: what is kept of the folder that the archive was unpacked into
    """
    folder = cache_directory() / "tests" / name
    with exclusive(cache_directory() / "tests" / "lock", print):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as staging:
                retrieve(Path(staging, "jars"), Path(staging, "ivy"), print, dependencies=dependencies)
                [archive] = Path(staging, "jars").glob("*/*.tar.gz")
                with open(archive, "rb") as file:
                    checksum = hashlib.file_digest(file, "sha256").hexdigest()
                assert checksum == sha256, f"{archive.name} has SHA-256 {checksum}, expected {sha256}"
                with tarfile.open(archive) as content:
                    content.extractall(Path(staging, "app"), filter="data")
                arrange(Path(staging, "app")).rename(folder)
    return folder
