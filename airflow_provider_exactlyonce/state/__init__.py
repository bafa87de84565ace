"""Keyed state in Flink's names, and a harness that runs a function without Spark. Imports no pyspark.

Jobs and their unit tests import it. How Spark keeps the state is in ``streaming.keyed``.
"""

from airflow_provider_exactlyonce.state.aggregation import Aggregation
from airflow_provider_exactlyonce.state.broadcast import BroadcastProcessFunction, BroadcastState
from airflow_provider_exactlyonce.state.collection_states import ListState, MapState
from airflow_provider_exactlyonce.state.function import Context, KeyedProcessFunction, TimerService
from airflow_provider_exactlyonce.state.harness import BroadcastHarness, KeyedHarness
from airflow_provider_exactlyonce.state.record import Record
from airflow_provider_exactlyonce.state.value_states import AggregatingState, ReducingState, ValueState

__all__ = [
    "AggregatingState",
    "Aggregation",
    "BroadcastHarness",
    "BroadcastProcessFunction",
    "BroadcastState",
    "Context",
    "KeyedHarness",
    "KeyedProcessFunction",
    "ListState",
    "MapState",
    "Record",
    "ReducingState",
    "TimerService",
    "ValueState",
]
