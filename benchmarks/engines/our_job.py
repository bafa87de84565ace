"""The query as a pipeline of this project."""

from __future__ import annotations

from airflow_provider_exactlyonce.streaming import AvroFormat, KafkaSink, KafkaSource, pipeline
from benchmarks.engines.assignment import COLUMNS, Assignment
from benchmarks.engines.queries import QUERIES
from benchmarks.engines.workloads import KEYS, PASSED

given = Assignment.given()
schema = None if given.query == PASSED else COLUMNS
value_format = AvroFormat() if given.registry else None
peer = pipeline(
    name=given.sink,
    source=KafkaSource(
        given.source,
        schema=schema,
        value_format=value_format,
        max_offsets_per_trigger=given.batch_rows,
        options=given.batch_options,
    ),
    sink=KafkaSink(given.sink, key=KEYS.get(given.query), value_format=value_format),
    output_mode="append",
)(QUERIES[given.query])

if __name__ == "__main__":
    peer.main()
