"""What holds of a process that may use HDFS: the client is installed, and survives a fork.

PySpark forks to start its JVM. Before the new process becomes the JVM, fsspec lets go of its clients there, and the end
of one waits for threads that were not forked, for ever.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_exactlyonce.exceptions import RefusedError

#: Those of the last fork, so that no child has to end them.
_kept: Final[list[object]] = []


def options() -> Mapping[str, Any]:
    """Return what fsspec is given for a place on HDFS.

    :raises RefusedError: when its client is not installed
    """
    if importlib.util.find_spec("hdfs_native") is None:
        raise RefusedError(
            "hdfs-native, which reads and writes hdfs:, is not installed: install airflow-provider-exactlyonce[hdfs]"
        )
    return {}


def _keep_clients() -> None:
    module = sys.modules.get("hdfs_native.fsspec")
    if module is not None:
        _kept[:] = module.HdfsFileSystem._cache.values()


os.register_at_fork(before=_keep_clients)
