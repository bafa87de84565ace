"""How Spark talks to its Python workers."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any


def test_python_workers_are_reached_through_sockets_of_the_owner_only(spark: Any) -> None:
    def sockets(batches: Any) -> Any:
        import pyarrow as pa

        for _ in batches:
            pass
        mode = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if ".sock" in line]
        writable = [
            name for name in mode if Path(name).exists() and os.stat(name).st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        ]
        settings = [
            os.environ["PYTHON_UNIX_DOMAIN_ENABLED"].lower(),
            os.environ["PYTHON_WORKER_FACTORY_SOCK_DIR"],
            *writable,
        ]
        yield pa.RecordBatch.from_pydict({"found": settings})

    settings = [row["found"] for row in spark.range(1, numPartitions=1).mapInArrow(sockets, "found STRING").collect()]
    assert settings == ["true", "/tmp"]
