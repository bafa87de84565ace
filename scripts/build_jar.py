"""Build the jar that is in the package from its Java sources; the same sources give the same bytes.

For maintainers, after a source changed. Needs javac 17; other releases may give other bytes.
"""

from __future__ import annotations

import subprocess
import tempfile
import zipfile
from pathlib import Path

from airflow_provider_exactlyonce.jars.cache import EXCLUSIVE_FILES_JAR, s3a_jars
from airflow_provider_exactlyonce.jars.spark import pyspark_jars

SOURCES = sorted(EXCLUSIVE_FILES_JAR.parent.glob("*.java"))
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def build(jar: Path) -> None:
    """Compile the sources into a jar.

    :raises subprocess.CalledProcessError: when it can't be compiled
    """
    class_path = ":".join(map(str, [*sorted(pyspark_jars().glob("*.jar")), *s3a_jars()]))
    with tempfile.TemporaryDirectory(prefix="exactlyonce-jar-") as folder:
        subprocess.run(
            ["javac", "--release", "17", "-proc:none", "-cp", class_path, "-d", folder, *map(str, SOURCES)], check=True
        )
        with zipfile.ZipFile(jar, "w") as packed:  # not compressed: libraries compress differently
            for file in sorted(Path(folder).rglob("*.class")):
                packed.writestr(zipfile.ZipInfo(str(file.relative_to(folder)), date_time=_LONG_AGO), file.read_bytes())


if __name__ == "__main__":
    build(EXCLUSIVE_FILES_JAR)
    print(f"{EXCLUSIVE_FILES_JAR}: {EXCLUSIVE_FILES_JAR.stat().st_size} bytes")
