"""The names that a job declares a pipeline with, and below them the rooms that run it, inside Spark.

The names are loaded when they are used; no room imports this one. The Airflow half, too, reads ``settings`` and
``file_systems``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.checkpoint.savepoints import SavepointRetention
    from airflow_provider_exactlyonce.ledger.retention import LedgerRetention
    from airflow_provider_exactlyonce.ledger.source_topics import TopicPattern
    from airflow_provider_exactlyonce.streaming.declaration import Pipeline, pipeline
    from airflow_provider_exactlyonce.streaming.job.checkpoint_config import (
        CheckpointConfig,
        CheckpointingMode,
        OnCancellation,
    )
    from airflow_provider_exactlyonce.streaming.job.kafka_source import KafkaSource
    from airflow_provider_exactlyonce.streaming.job.state_backend import StateBackend
    from airflow_provider_exactlyonce.streaming.job.table_source import DeltaSource, IcebergSource
    from airflow_provider_exactlyonce.streaming.keyed.connected_stream import ConnectedStream, connect
    from airflow_provider_exactlyonce.streaming.keyed.keyed_stream import KeyedStream, key_by, spread
    from airflow_provider_exactlyonce.streaming.registry.avro_format import AvroFormat
    from airflow_provider_exactlyonce.streaming.registry.protobuf_format import ProtobufFormat
    from airflow_provider_exactlyonce.streaming.sinks.delta.sink import DeltaSink
    from airflow_provider_exactlyonce.streaming.sinks.files.file_table import FileTable
    from airflow_provider_exactlyonce.streaming.sinks.files.sink import FileSink
    from airflow_provider_exactlyonce.streaming.sinks.iceberg.sink import IcebergSink
    from airflow_provider_exactlyonce.streaming.sinks.kafka.sink import KafkaSink
    from airflow_provider_exactlyonce.streaming.sinks.postgres.sink import PostgresSink
    from airflow_provider_exactlyonce.streaming.sinks.spi import Share, Sink
    from airflow_provider_exactlyonce.streaming.sinks.upsert.sink import UpsertSink
    from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log.delivery import Target
    from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log.sink import WriteAheadLogSink

__all__ = [
    "AvroFormat",
    "CheckpointConfig",
    "CheckpointingMode",
    "ConnectedStream",
    "DeltaSink",
    "DeltaSource",
    "FileSink",
    "FileTable",
    "IcebergSink",
    "IcebergSource",
    "KafkaSink",
    "KafkaSource",
    "KeyedStream",
    "LedgerRetention",
    "OnCancellation",
    "Pipeline",
    "PostgresSink",
    "ProtobufFormat",
    "SavepointRetention",
    "Share",
    "Sink",
    "StateBackend",
    "Target",
    "TopicPattern",
    "UpsertSink",
    "WriteAheadLogSink",
    "connect",
    "key_by",
    "pipeline",
    "spread",
]

_HOMES: Final = {
    "AvroFormat": "registry.avro_format",
    "CheckpointConfig": "job.checkpoint_config",
    "CheckpointingMode": "job.checkpoint_config",
    "ConnectedStream": "keyed.connected_stream",
    "DeltaSink": "sinks.delta.sink",
    "DeltaSource": "job.table_source",
    "FileSink": "sinks.files.sink",
    "FileTable": "sinks.files.file_table",
    "IcebergSink": "sinks.iceberg.sink",
    "IcebergSource": "job.table_source",
    "KafkaSink": "sinks.kafka.sink",
    "KafkaSource": "job.kafka_source",
    "KeyedStream": "keyed.keyed_stream",
    "LedgerRetention": "job.definition",
    "OnCancellation": "job.checkpoint_config",
    "Pipeline": "declaration",
    "PostgresSink": "sinks.postgres.sink",
    "ProtobufFormat": "registry.protobuf_format",
    "SavepointRetention": "job.checkpoint_config",
    "Share": "sinks.spi",
    "Sink": "sinks.spi",
    "StateBackend": "job.state_backend",
    "UpsertSink": "sinks.upsert.sink",
    "Target": "sinks.write_ahead_log.delivery",
    "TopicPattern": "job.kafka_source",
    "WriteAheadLogSink": "sinks.write_ahead_log.sink",
    "connect": "keyed.connected_stream",
    "key_by": "keyed.keyed_stream",
    "pipeline": "declaration",
    "spread": "keyed.keyed_stream",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: the Airflow half reads the settings and loads no Kafka client."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
