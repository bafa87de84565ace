"""What a driver writes while its cluster is away."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_exactlyonce.control import status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from tests.integration.streaming.harness import World
from tests.waiting import eventually

_AWAY_SECONDS = 25


@pytest.mark.slow
def test_a_cluster_that_is_away_is_one_line_a_minute_and_the_driver_goes_on(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "broker") as broker:
        config = {"bootstrap.servers": broker.bootstrap_servers}
        admin = AdminClient(dict(config))
        for made in admin.create_topics([NewTopic("in", 2, 1), NewTopic("out", 2, 1)]).values():
            made.result(30)
        world = World(config=config, pipeline="away", source="in", sink="out", home=tmp_path / "home")
        try:
            world.send(100)
            driver = world.start(until="forever")

            def committed() -> int:
                driver_status = status.read(Home(world.home).status)
                return driver_status.commit if driver_status else 0

            eventually(lambda: committed() == 1, "its first commit")
            before = len(driver.output().splitlines())
            began = time.monotonic()
            broker.kill()
            time.sleep(_AWAY_SECONDS)
            broker.start()
            world.send(100)
            eventually(lambda: committed() == 2, "its next commit")
            said = driver.output().splitlines()[before:]
            away = [line for line in said if any(word in line for word in ("Kafka", "Client", "ECONNREFUSED"))]
            assert 1 <= len(away) <= 2 + (time.monotonic() - began) // 60, "some hundred lines without the limit"
        finally:
            world.end()
