"""What runs inside Spark: the job definition, its driver, and the commit coordinator. Imports no Airflow."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.checkpoint.savepoints import SavepointRetention
    from airflow_provider_exactlyonce.ledger.retention import LedgerRetention
    from airflow_provider_exactlyonce.streaming.checkpointing import CheckpointConfig, CheckpointingMode, OnCancellation
    from airflow_provider_exactlyonce.streaming.connected_stream import ConnectedStream, connect
    from airflow_provider_exactlyonce.streaming.definition import Pipeline, pipeline
    from airflow_provider_exactlyonce.streaming.keyed_stream import KeyedStream, key_by, spread
    from airflow_provider_exactlyonce.streaming.sinks.delivery import Target
    from airflow_provider_exactlyonce.streaming.sinks.file_table import FileTable
    from airflow_provider_exactlyonce.streaming.sinks.files import FileSink
    from airflow_provider_exactlyonce.streaming.sinks.kafka import KafkaSink
    from airflow_provider_exactlyonce.streaming.sinks.kafka_columns import AvroFormat
    from airflow_provider_exactlyonce.streaming.sinks.postgres import PostgresSink
    from airflow_provider_exactlyonce.streaming.sinks.spi import Share, Sink
    from airflow_provider_exactlyonce.streaming.sinks.upsert import UpsertSink
    from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log import WriteAheadLogSink
    from airflow_provider_exactlyonce.streaming.sources.kafka import KafkaSource
    from airflow_provider_exactlyonce.streaming.state_backend import StateBackend

__all__ = [
    "AvroFormat",
    "CheckpointConfig",
    "CheckpointingMode",
    "ConnectedStream",
    "FileSink",
    "FileTable",
    "KafkaSink",
    "KafkaSource",
    "KeyedStream",
    "LedgerRetention",
    "OnCancellation",
    "Pipeline",
    "PostgresSink",
    "SavepointRetention",
    "Share",
    "Sink",
    "StateBackend",
    "Target",
    "UpsertSink",
    "WriteAheadLogSink",
    "connect",
    "key_by",
    "pipeline",
    "spread",
]

_HOMES: Final = {
    "AvroFormat": "sinks.kafka_columns",
    "CheckpointConfig": "checkpointing",
    "CheckpointingMode": "checkpointing",
    "ConnectedStream": "connected_stream",
    "FileSink": "sinks.files",
    "FileTable": "sinks.file_table",
    "KafkaSink": "sinks.kafka",
    "KafkaSource": "sources.kafka",
    "KeyedStream": "keyed_stream",
    "LedgerRetention": "definition",
    "OnCancellation": "checkpointing",
    "Pipeline": "definition",
    "PostgresSink": "sinks.postgres",
    "SavepointRetention": "checkpointing",
    "Share": "sinks.spi",
    "Sink": "sinks.spi",
    "StateBackend": "state_backend",
    "UpsertSink": "sinks.upsert",
    "Target": "sinks.delivery",
    "WriteAheadLogSink": "sinks.write_ahead_log",
    "connect": "connected_stream",
    "key_by": "keyed_stream",
    "pipeline": "definition",
    "spread": "keyed_stream",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: the Airflow half reads the settings and loads no Kafka client."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
