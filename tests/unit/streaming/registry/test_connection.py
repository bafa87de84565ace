"""Where a driver's registry comes from, and that nothing of it is shown but its address."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.registry import connection
from airflow_provider_exactlyonce.streaming.settings import REGISTRY_VARIABLE

CONFIG = {"url": "https://user:secret@registry:8081/apis", "basic.auth.user.info": "me:secret"}


@pytest.mark.parametrize("text", ["https://registry:8081", json.dumps({"url": "https://registry:8081"})])
def test_the_registry_is_a_url_or_its_clients_configuration(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REGISTRY_VARIABLE, text)
    assert connection.from_environment().shown == "https://registry:8081"


def test_a_file_may_hold_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "registry.json"
    file.write_text(json.dumps(CONFIG))
    monkeypatch.setenv(REGISTRY_VARIABLE, f"@{file}")
    registry = connection.from_environment()
    assert registry.shown == "https://registry:8081/apis"
    assert "secret" not in repr(registry)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no registry is known: set EXACTLYONCE_SCHEMA_REGISTRY"),
        ("@/nowhere/secret.json", "can't be read here"),
        ('{"password": "secret"}', "not shown: it may hold a secret"),
        ("registry secret", "not shown: it may hold a secret"),
    ],
)
def test_what_names_no_registry_is_refused_and_not_shown(
    text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REGISTRY_VARIABLE, text)
    with pytest.raises(RefusedError) as caught:
        connection.from_environment()
    assert message in str(caught.value)
    assert "secret" not in str(caught.value).replace("a secret", "").replace("secret.json", "")


def test_a_word_that_the_client_does_not_know_is_refused_by_name() -> None:
    address = connection.RegistryAddress(json.dumps({"url": "http://registry", "max.retires": 3}))
    with pytest.raises(RefusedError, match=r"configuration is refused: Unrecognized properties: max\.retires"):
        connection.connect(address)
