"""The doctor of a pipeline whose cluster does not answer."""

from __future__ import annotations

import socket

import pytest

from tests import commands


@pytest.mark.slow
def test_the_doctor_says_that_it_waits_for_a_cluster_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        said = commands.run("doctor", "shop-totals", "--bootstrap-servers", address, code=1).err
    assert f"no answer yet of Kafka at {address}, or of the home: waiting" in said
