"""The job that the DAGs run, and Spark settings with which a short life starts fast."""

from pathlib import Path

JOB = Path(__file__).parents[1] / "streaming" / "jobs" / "counts.py"
CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
