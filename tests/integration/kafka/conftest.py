"""What several of these test files start."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from airflow_provider_exactlyonce.devkit import guard
from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.devkit.configuration import HOST
from airflow_provider_exactlyonce.devkit.launch import launch
from airflow_provider_exactlyonce.devkit.process import ProcessIdentity
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.jars.cache import broker_jars
from airflow_provider_exactlyonce.jars.java import java_command
from airflow_provider_exactlyonce.kafka.wire import WireClient
from tests.ports import free_port
from tests.waiting import HANG_SECONDS, eventually


@pytest.fixture
def make_led_topic(make_topic: Callable[..., str], kafka_config: Mapping[str, str]) -> Iterator[Callable[..., str]]:
    """Give ``make(partitions=2, **settings)``, which creates a topic and waits until it takes records at once."""
    with WireClient(kafka_config) as client:

        def make(partitions: int, **settings: str) -> str:
            topic = make_topic(partitions=partitions, **settings)

            def is_led() -> bool:
                try:
                    return len(client.offsets.last_stable(client.offsets.partitions([topic]))) == partitions
                except (KafkaException, ExactlyOnceError):
                    return False

            eventually(is_led, f"{topic} has leaders")
            return topic

        yield make


@pytest.fixture
def two_brokers(tmp_path: Path) -> Iterator[tuple[EmbeddedBroker, ProcessIdentity]]:
    """Give a cluster of two brokers, and the process of the second."""
    settings = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
    with EmbeddedBroker(tmp_path / "first", properties=settings, heap_megabytes=256) as first:
        data = tmp_path / "second"
        (data / "logs").mkdir(parents=True)
        properties = {
            line.partition("=")[0]: line.partition("=")[2]
            for line in (first.data_directory / "server.properties").read_text().splitlines()
        }
        port = free_port()
        properties |= {
            "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
            "listeners": f"PLAINTEXT://{HOST}:{port}",
            "log.dirs": str(data / "kafka"),
            "node.id": "2",
            "process.roles": "broker",
        }
        file = data / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        java = java_command(":".join(map(str, broker_jars())), 256, "-XX:TieredStopAtLevel=1")
        with (data / "logs" / "server.log").open("ab") as log:
            subprocess.run(
                [
                    *(*java, "kafka.tools.StorageTool", "format"),
                    *("--config", str(file), f"--cluster-id={first.state.cluster_id}"),
                ],
                stdout=log,
                stderr=log,
                check=True,
                timeout=HANG_SECONDS,
            )
            supervisor, second = launch([*java, "kafka.Kafka", str(file)], data, log, guard.SUPERVISE)
        try:
            admin = AdminClient({"bootstrap.servers": first.bootstrap_servers})
            eventually(lambda: len(admin.list_topics(timeout=30).brokers) == 2, "both brokers are there")
            yield first, second
        finally:
            second.send(signal.SIGKILL)
            second.wait_until_gone(HANG_SECONDS)
            assert supervisor is not None
            supervisor.wait()
