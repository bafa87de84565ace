"""Lets clients of HDFS survive a fork.

PySpark forks to start its JVM. Before the new process becomes the JVM, fsspec drops its clients there, and the end of a
client waits for threads that were not forked, for ever.
"""

from __future__ import annotations

import sys
from typing import Final

#: Those of the last fork, so that no child has to end them.
_clients: Final[list[object]] = []


def keep() -> None:
    """Keep the existing clients from being dropped in a child; called before each fork."""
    module = sys.modules.get("hdfs_native.fsspec")
    if module is not None:
        _clients[:] = module.HdfsFileSystem._cache.values()
