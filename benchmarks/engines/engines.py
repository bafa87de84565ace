"""The engines that are compared, and how each is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.cli.submission import environment, submit_command
from airflow_provider_exactlyonce.jars import class_archive
from airflow_provider_exactlyonce.jars.cache import spark_connector_jars
from airflow_provider_exactlyonce.streaming import settings
from benchmarks.engines.assignment import HEAP_MEGABYTES, Assignment

HERE: Final = Path(__file__).parent
#: What all lanes of Spark have, ours among them.
SPARK_CONF: Final = {
    "spark.driver.memory": f"{HEAP_MEGABYTES}m",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
#: What of our own settings Spark's lanes get, too: the job's state store; and tuned, how checkpoints are written.
STATE_STORE, CHECKPOINT_FILES = (
    "spark.sql.streaming.stateStore.providerClass",
    "spark.sql.streaming.checkpointFileManagerClass",
)
MASTER: Final = "local[2]"


@dataclass(frozen=True)
class Engine:
    """A lane of the comparison.

    :param guarantee: of its output
    """

    name: str
    guarantee: str

    def command(self, given: Assignment) -> list[str]:
        if self is FLINK:
            return [sys.executable, str(HERE / "flink_job.py")]
        if self is OURS:
            ending = "available" if given.bounded else "forever"
            arguments = ["--home", str(Path(given.folder, "home")), "--until", ending]
            return submit_command(str(HERE / "our_job.py"), arguments, master=MASTER, conf=SPARK_CONF)
        shared = [STATE_STORE, CHECKPOINT_FILES] if self is SPARK_TUNED else [STATE_STORE]
        command = [str(Path(sys.executable).with_name("spark-submit")), "--master", MASTER]
        for name, value in {**SPARK_CONF, **{name: settings.DEFAULTS[name] for name in shared}}.items():
            command += ["--conf", f"{name}={value}"]
        command += ["--jars", ",".join(map(str, spark_connector_jars())), str(HERE / "spark_job.py")]
        return [*command, *(["--tuned"] if self is SPARK_TUNED else [])]

    def environment(self, given: Assignment) -> Mapping[str, str]:
        root = str(HERE.parents[1])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        job_environment = environment({"bootstrap.servers": given.servers}, SPARK_CONF)
        if given.registry:
            job_environment[settings.REGISTRY_VARIABLE] = given.registry
        if self is not OURS:  # nor is Spark itself started from our archive of its classes
            job_environment.pop(class_archive.OPTIONS_VARIABLE, None)
        return {**os.environ, **job_environment, **given.environment(), "PYTHONPATH": path}


FLINK: Final = Engine("Flink", "exactly once")
SPARK: Final = Engine("Spark", "at least once")
SPARK_TUNED: Final = Engine("Spark tuned", "at least once")
OURS: Final = Engine("ours", "exactly once")
ENGINES: Final = (FLINK, SPARK, SPARK_TUNED, OURS)
