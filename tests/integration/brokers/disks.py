"""A disk for each broker, so that one can be full: file systems of a fixed size, in memory.

Mounted by root under a name of their own. What a killed run left is found by it and removed by the next run.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

NAME: Final = "exactlyonce-disk"
_FILLER: Final = "filler"


def mount(folder: Path, megabytes: int) -> None:
    """Make an empty folder a disk."""
    options = f"size={megabytes}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, NAME, str(folder)], check=True)


def unmount_all() -> None:
    """Remove all disks with what is on them. May be repeated."""
    for line in Path("/proc/mounts").read_text().splitlines():
        name, folder, *_ = line.split()
        if name == NAME:
            subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path) -> None:
    """Leave no byte free."""
    with (folder / _FILLER).open("wb") as filler:
        about = os.statvfs(folder)
        os.posix_fallocate(filler.fileno(), 0, about.f_bavail * about.f_frsize)


def free(folder: Path) -> None:
    """Undo :func:`fill`; nothing where it was not done."""
    (folder / _FILLER).unlink(missing_ok=True)
