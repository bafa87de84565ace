from __future__ import annotations

import socket

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError, SequencerPortError, SettingRefusedError
from airflow_provider_exactlyonce.policies.restart_strategy import RESTARTABLE
from airflow_provider_exactlyonce.streaming.sequencer.listener import SequencerListener
from airflow_provider_exactlyonce.streaming.settings import SequencerEndpoint, sequencer_endpoint

HOST = "spark.exactlyonce.sequencer.host"
BIND = "spark.exactlyonce.sequencer.bindAddress"
PORT = "spark.exactlyonce.sequencer.port"
DRIVER = {"spark.driver.host": "10.0.0.7"}


@pytest.mark.parametrize(
    ("master", "settings", "expected"),
    [
        ("local[2]", {}, ("127.0.0.1", "127.0.0.1", 0)),
        ("local[2]", {**DRIVER, "spark.driver.bindAddress": "10.0.0.7"}, ("127.0.0.1", "127.0.0.1", 0)),
        ("local[2]", {HOST: "10.0.0.8"}, ("10.0.0.8", "10.0.0.8", 0)),
        ("spark://m:7077", DRIVER, ("10.0.0.7", "10.0.0.7", 0)),
        ("spark://m:7077", {**DRIVER, "spark.driver.bindAddress": "0.0.0.0"}, ("10.0.0.7", "0.0.0.0", 0)),
        (
            "k8s://m",
            {**DRIVER, HOST: "driver.example", BIND: "0.0.0.0", PORT: "7099"},
            ("driver.example", "0.0.0.0", 7099),
        ),
    ],
)
def test_the_sequencer_listens_where_the_settings_say(
    master: str, settings: dict[str, str], expected: tuple[str, str, int]
) -> None:
    endpoint = sequencer_endpoint(settings.get, master)
    assert (endpoint.host, endpoint.bind_address, endpoint.port) == expected


@pytest.mark.parametrize("port", ["x", "-1", "65536", "1.5"])
def test_a_port_that_is_none_is_refused_by_its_setting(port: str) -> None:
    with pytest.raises(SettingRefusedError, match=rf"spark\.exactlyonce\.sequencer\.port is '{port}'"):
        sequencer_endpoint({**DRIVER, PORT: port}.get, "local[2]")


def test_a_cluster_without_a_known_host_of_the_driver_is_refused_by_the_setting() -> None:
    with pytest.raises(SettingRefusedError, match=r"spark\.exactlyonce\.sequencer\.host is not set"):
        sequencer_endpoint(dict[str, str]().get, "spark://m:7077")


def test_a_fixed_port_in_use_is_named_with_its_setting_and_may_be_free_at_the_next_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        endpoint = SequencerEndpoint(host="127.0.0.1", bind_address="127.0.0.1", port=port)
        with pytest.raises(SequencerPortError, match=rf"sequencer\.port is {port}, .* is in use") as caught:
            SequencerListener(endpoint)
    assert caught.value.decision in RESTARTABLE


@pytest.mark.parametrize("address", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_of_this_host_is_refused_with_all_three_settings(address: str) -> None:
    with pytest.raises(RefusedError, match=f"can't listen on {address}:0") as caught:
        SequencerListener(SequencerEndpoint(host=address, bind_address=address))
    assert all(name in str(caught.value) for name in (HOST, BIND, PORT))
