"""A standby's rehearsal: Spark runs a small query, so that a pipeline's first batch finds classes and Python there."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.jars import class_training
from airflow_provider_exactlyonce.storage.opening import hadoop_url
from airflow_provider_exactlyonce.streaming import settings
from airflow_provider_exactlyonce.streaming.spark.session import settings_meanwhile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("exactlyonce")

#: Whatever the pipeline's are: few tasks, and files of this machine.
_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "2",
    settings.FILE_MANAGER: settings.DEFAULTS[settings.FILE_MANAGER],
}


def rehearse(spark: SparkSession) -> None:
    """Run a query of our own, in a directory of this machine; executors elsewhere would not find that.

    It knows nothing of the pipeline. If it fails, the pipeline's first batch takes longer, and nothing else.
    """
    if not str(spark.sparkContext.master).startswith("local"):
        return
    try:
        with (
            settings_meanwhile(spark, _SETTINGS),
            tempfile.TemporaryDirectory(prefix="exactlyonce-standby-", ignore_cleanup_errors=True) as folder,
        ):
            class_training.run(spark, hadoop_url(Path(folder, "checkpoint")))
    except Exception as error:  # whatever it is, it says nothing of the pipeline
        log.warning("the standby's rehearsal failed, so that its first batch will take longer: %s", error)
