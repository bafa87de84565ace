"""The query in Flink's SQL, in one JVM with a cluster of its own, driven through py4j as PyFlink does.

Started again it goes on from its newest completed checkpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from benchmarks.engines.assignment import HEAP_MEGABYTES, Assignment
from benchmarks.engines.flink_jars import flink_jars
from benchmarks.engines.kafka_clients import CONSUMER, PRODUCER, kafka_options
from benchmarks.engines.workloads import KEYS, PROJECTED, WINDOWED

EVENTS: Final = (
    "event_id BIGINT, uuid STRING, itemCode STRING, behavior STRING, price DECIMAL(12,2), ts BIGINT, "
    "moment AS TO_TIMESTAMP_LTZ(ts, 3), WATERMARK FOR moment AS moment - INTERVAL '10' SECOND"
)
#: By query: the columns of the source, those of the sink, and the statement.
QUERIES: Final[Mapping[str, tuple[str, str, str]]] = {
    PROJECTED: (
        EVENTS.partition(", moment")[0],
        "event_id BIGINT, uuid STRING, itemCode STRING, total DECIMAL(14,2)",
        "SELECT event_id, uuid, itemCode, price * 2 FROM events WHERE behavior = 'pay'",
    ),
    WINDOWED: (
        EVENTS,
        "`start` BIGINT, itemCode STRING, n BIGINT, paid DECIMAL(38,2)",
        "SELECT TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', window_start), itemCode, COUNT(*), SUM(price) "
        "FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(moment), INTERVAL '1' MINUTE)) "
        "GROUP BY window_start, window_end, itemCode",
    ),
}
#: Flink's own start script opens the same packages.
OPENED: Final = (
    *("java.lang", "java.net", "java.io", "java.nio", "java.lang.reflect", "java.text", "java.time", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks", "sun.nio.ch"),
)


def settings(folder: Path) -> dict[str, str]:
    """Return Flink's configuration, and from where it goes on."""
    checkpoints = folder / "checkpoints"
    chosen = {
        "execution.target": "local",
        "parallelism.default": "2",
        "execution.checkpointing.interval": "1s",
        "execution.checkpointing.dir": checkpoints.as_uri(),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "execution.checkpointing.incremental": "true",
        "state.backend.type": "rocksdb",
        "taskmanager.memory.managed.size": "512m",
        "pipeline.object-reuse": "true",
        "table.local-time-zone": "UTC",
    }
    completed = sorted(checkpoints.glob("*/chk-*/_metadata"), key=lambda file: file.stat().st_mtime)
    return {**chosen, "execution.state-recovery.path": completed[-1].parent.as_uri()} if completed else chosen


def table(name: str, columns: str, options: Mapping[str, str]) -> str:
    listed = ", ".join(f"'{option}' = '{value}'" for option, value in options.items())
    return f"CREATE TABLE {name} ({columns}) WITH ({listed})"


def statements(given: Assignment) -> list[str]:
    source_columns, sink_columns, select = QUERIES[given.query]
    kafka = {"connector": "kafka", "properties.bootstrap.servers": given.servers, "value.format": "json"}
    if given.registry:
        kafka |= {"value.format": "avro-confluent", "value.avro-confluent.url": given.registry}
    source = {
        "topic": given.source,
        "scan.startup.mode": "earliest-offset",
        "properties.group.id": given.sink,
        "properties.isolation.level": "read_committed",
        **kafka_options(CONSUMER, "properties."),
    }
    if given.bounded:
        source["scan.bounded.mode"] = "latest-offset"
    sink = {
        "topic": given.sink,
        "key.format": "raw",
        "key.fields": KEYS[given.query],
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": given.sink,
        "properties.transaction.timeout.ms": "600000",
        **kafka_options(PRODUCER, "properties."),
    }
    return [
        table("events", source_columns, {**kafka, **source}),
        table("results", sink_columns, {**kafka, **sink}),
        f"INSERT INTO results {select}",
    ]


def main() -> None:
    given = Assignment.given()
    [py4j] = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    port = launch_gateway(
        jarpath=str(py4j),
        classpath=":".join(map(str, flink_jars())),
        javaopts=[f"-Xmx{HEAP_MEGABYTES}m", *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in OPENED)],
        die_on_exit=True,
        redirect_stdout=sys.stdout,
        redirect_stderr=sys.stderr,
    )
    flink = JavaGateway(gateway_parameters=GatewayParameters(port=port)).jvm.org.apache.flink
    configuration = flink.configuration.Configuration()
    for name, value in settings(Path(given.folder)).items():
        configuration.setString(name, value)
    builder = flink.table.api.EnvironmentSettings.newInstance().inStreamingMode()
    session = flink.table.api.TableEnvironment.create(builder.withConfiguration(configuration).build())
    *tables, insert = statements(given)
    for statement in tables:
        session.executeSql(statement)
    getattr(session.executeSql(insert), "await")()


if __name__ == "__main__":
    main()
