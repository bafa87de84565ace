"""What runs inside Spark: the job definition, its driver, and the commit coordinator. Imports no Airflow."""

from airflow_provider_exactlyonce.streaming.definition import Pipeline, pipeline
from airflow_provider_exactlyonce.streaming.sinks.kafka import KafkaSink
from airflow_provider_exactlyonce.streaming.sources.kafka import KafkaSource

__all__ = ["KafkaSink", "KafkaSource", "Pipeline", "pipeline"]
