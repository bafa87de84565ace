"""Resolve the jars afresh and write the checksums of what came. For maintainers, after a version changed."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from airflow_provider_exactlyonce.jars.cache import AZURE, GCS, KAFKA, S3A, JarSet
from airflow_provider_exactlyonce.jars.ivy import retrieve


def remake(wanted: JarSet) -> None:
    """Download every jar into a temporary folder, so that nothing old is trusted."""
    with tempfile.TemporaryDirectory(prefix="exactlyonce-checksums-") as folder:
        jars = Path(folder, "jars")
        jars.mkdir()
        retrieve(jars, Path(folder, "ivy"), print, dependencies=wanted.dependencies)
        lines = [
            f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(jars)}\n"
            for path in sorted(jars.glob("*/*.jar"))
        ]
    wanted.checksums.write_text("".join(lines), encoding="utf-8")
    print(f"{len(lines)} checksums written to {wanted.checksums}")


if __name__ == "__main__":
    for jars in (KAFKA, S3A, GCS, AZURE):
        remake(jars)
