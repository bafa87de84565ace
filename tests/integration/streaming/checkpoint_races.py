"""Eight writers create one file of a checkpoint, again and again, through Spark's file manager; prints how many did.

Run by itself, with a place and the number of races: it has a JVM of its own.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from airflow_provider_exactlyonce.checkpoint.state_reader import local_session
from airflow_provider_exactlyonce.storage.opening import hadoop_url, place_of

WRITERS = 8


def race(jvm: Any, conf: Any, place: Any, races: int) -> dict[str, Any]:
    """Let the writers create one file after the other in a place; returns how they ended.

    :param conf: Hadoop's, with the setting that names Spark's file manager
    """
    folder = jvm.org.apache.hadoop.fs.Path(hadoop_url(place))
    manager = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.create(folder, conf)
    manager.mkdirs(jvm.org.apache.hadoop.fs.Path(folder, "offsets"))  # as Spark does before it writes there

    def create(file: Any, writer: int) -> str:
        try:
            stream = manager.createAtomic(file, False)
            stream.write(bytes([writer]))
            stream.close()
        except Exception as error:
            return str(error.java_exception.getClass().getSimpleName())  # type: ignore[attr-defined]
        return "created"

    ended: Counter[str] = Counter()
    with ThreadPoolExecutor(WRITERS) as writers:
        for number in range(races):
            file = jvm.org.apache.hadoop.fs.Path(folder, f"offsets/{number}")
            outcomes = list(writers.map(partial(create, file), range(WRITERS)))
            assert outcomes.count("created") == 1, outcomes
            assert (place / "offsets" / str(number)).read_bytes() == bytes([outcomes.index("created")])
            ended.update(outcomes)
    cancelled = manager.createAtomic(jvm.org.apache.hadoop.fs.Path(folder, "cancelled"), False)
    cancelled.write(b"x")
    cancelled.cancel()
    return {"manager": manager.getClass().getName(), "left": (place / "cancelled").exists(), **ended}


def main(location: str, races: int) -> None:
    place = place_of(location)
    with local_session("races", place) as spark:
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        print(json.dumps(race(spark._jvm, conf, place, races)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
