"""What the text of a pipeline's version is made of, which no release changes."""

from __future__ import annotations

from airflow_provider_exactlyonce.streaming.sinks.kafka.sink import KafkaSink
from airflow_provider_exactlyonce.streaming.sinks.sink_routes import SinkRoutes
from airflow_provider_exactlyonce.streaming.sinks.spi import Share


def test_the_text_of_several_sinks_is_that_of_the_first_release() -> None:
    routes = SinkRoutes(kafka=Share("k"), others=[Share("o", where="a > 1", select=("a",))])
    assert repr(routes.declared) == (
        "Shares(kafka=Share(sink='k', where=None, select=('*',)), "
        "others=[Share(sink='o', where='a > 1', select=('a',))])"
    )


def test_a_kafka_sink_that_gets_everything_is_only_itself() -> None:
    sink = KafkaSink("out")
    assert SinkRoutes(kafka=Share(sink), others=()).declared is sink
