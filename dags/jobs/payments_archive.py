"""Payments go to a Delta table, and are told to an HTTP endpoint, which has neither transactions nor keys."""

import json
import os
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.streaming import DeltaSink, KafkaSource, Target, WriteAheadLogSink, pipeline


@dataclass(frozen=True)
class HttpTarget(Target):
    """POSTs each commit as JSON lines, and GETs the number of the newest one that the endpoint has."""

    url: str
    timeout_seconds: float = 30

    def deliver(self, entry: Any, rows: Iterator[Any]) -> None:
        lines = "".join(json.dumps(row) + "\n" for batch in rows for row in batch.to_pylist())
        headers = {"Idempotency-Key": str(entry.commit), "Content-Type": "application/x-ndjson"}
        request = urllib.request.Request(self.url, lines.encode(), headers)
        with urllib.request.urlopen(request, timeout=self.timeout_seconds):
            pass

    def has(self, entry: Any) -> bool:
        with urllib.request.urlopen(self.url, timeout=self.timeout_seconds) as answer:
            return bool(int(answer.read()) >= entry.commit)


@pipeline(
    name=os.environ.get("ARCHIVE_PIPELINE", "payments-archive"),
    source=KafkaSource(
        os.environ.get("ARCHIVE_SOURCE", "payments"),
        schema="id BIGINT NOT NULL, k STRING NOT NULL, v DECIMAL(12,2) NOT NULL",
        max_offsets_per_trigger=int(os.environ.get("ARCHIVE_BATCH", "100000")),
    ),
    sink=[
        DeltaSink(name="files", path=os.environ.get("ARCHIVE_PATH", "/var/lib/payments"), partition_by=["shop"]),
        WriteAheadLogSink(
            name="endpoint",
            path=os.environ.get("ARCHIVE_LOG", "/var/lib/payments-log"),
            target=HttpTarget(os.environ.get("ARCHIVE_URL", "http://127.0.0.1:8000/payments")),
        ),
    ],
)
def payments_archive(payments: DataFrame) -> DataFrame:
    return payments.selectExpr("id", "k", "CAST(v AS DOUBLE) AS v", "CAST(pmod(id, 4) AS INT) AS shop")


if __name__ == "__main__":
    payments_archive.main()
