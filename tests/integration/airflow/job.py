"""The job that the DAGs run, and Spark settings with which a short life starts fast."""

from pathlib import Path

from tests import spark_classes

JOB = Path(__file__).parents[1] / "streaming" / "jobs" / "counts.py"
CONF = {
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {spark_classes.JVM_OPTION}",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
