"""PySpark from the files that pip has installed and Python has compiled, not from the archive of the same files.

Spark puts the archive before them, in drivers that spark-submit starts and in workers. Python compiles what it imports
from an archive each time: 0.4 s of CPU for each process.
"""

from __future__ import annotations

import sys
from pathlib import Path


def prefer() -> None:
    """Leave out the archive where the files that it lies among are found without it; PySpark is not imported yet."""
    sys.path[:] = [entry for entry in sys.path if not _is_spare(Path(entry))]


def _is_spare(entry: Path) -> bool:
    # As pip installs it; a Spark of its own has the archive only.
    if entry.parts[-4:] != ("pyspark", "python", "lib", "pyspark.zip"):
        return False
    packages, package = entry.parents[3], entry.parents[2]
    return str(packages) in sys.path and (package / "__init__.py").is_file()
