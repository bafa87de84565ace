"""The job that the DAGs run, and Spark settings with which a short life starts fast."""

from pathlib import Path

from tests import class_archives

JOB = Path(__file__).parents[1] / "streaming" / "jobs" / "counts.py"
CONF = {
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.extraJavaOptions": class_archives.SHORT_LIVED,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
