"""What Ivy, in its JVM, says without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.exceptions import MissingRequirementError
from airflow_provider_exactlyonce.jars import cache
from tests.unit.jars.test_cache import silent


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the JVM to a proxy where nobody listens."""
    for name in ("no_proxy", "NO_PROXY", "https_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")


def test_without_a_network_it_says_so_and_how_to_go_on(folder: Path, no_network: None) -> None:
    with pytest.raises(
        MissingRequirementError, match=r"can't be downloaded \(ConnectException.*network is needed once.*HTTPS_PROXY"
    ):
        cache.resolve(silent)
    assert not cache.jar_directory().exists()
