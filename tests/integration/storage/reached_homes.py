"""A home that a task reaches by a connection, and a command by the environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.hooks.home import home_at


def check_reached(
    url: str, connection: Mapping[str, Any], environment: Mapping[str, str], patch: pytest.MonkeyPatch
) -> None:
    """Make a home by the connection ``lake``, which the URL names, and find it by the environment."""
    for name in environment:
        patch.delenv(name, raising=False)
    patch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    made = home_at(url)
    assert (made.location, str(made)) == (url, url.replace("lake@", ""))
    lineage = made.create("shop")
    for name, value in environment.items():
        patch.setenv(name, value)
    found = Home(url)
    assert found.pipeline() == "shop"
    assert found.uses(lineage.id)
