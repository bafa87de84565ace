from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.kafka import config

SECURE = {
    "bootstrap.servers": "a:1,b:2",
    "security.protocol": "sasl_ssl",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "user",
    "sasl.password": 'quo"te',
    "ssl.ca.location": "/ca.pem",
    "group.id": "only for consumers",
}


def test_kafka_python_gets_its_names_and_nothing_of_a_consumer() -> None:
    assert config.for_kafka_python(SECURE) == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "user",
        "sasl_plain_password": 'quo"te',
        "ssl_cafile": "/ca.pem",
    }


def test_spark_gets_the_same_credentials() -> None:
    options = config.for_spark(SECURE)
    assert options["kafka.security.protocol"] == "SASL_SSL"
    assert options["kafka.sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="user" password="quo\\"te";'
    )
    assert options["kafka.ssl.truststore.location"] == "/ca.pem"
    assert "kafka.group.id" not in options


def test_a_password_of_any_letters_reaches_the_java_client_as_it_is() -> None:
    jaas = config.for_spark({**SECURE, "sasl.password": 'é\\"ü'})["kafka.sasl.jaas.config"]
    assert jaas.endswith('password="é\\\\\\"ü";')


@pytest.mark.parametrize(("value", "checked", "for_java"), [("none", False, ""), ("https", True, "https")])
def test_the_check_of_the_brokers_name_is_the_same_for_all_clients(value: str, checked: bool, for_java: str) -> None:
    name = "ssl.endpoint.identification.algorithm"
    assert config.for_kafka_python({**SECURE, name: value})["ssl_check_hostname"] is checked
    assert config.for_spark({**SECURE, name: value})[f"kafka.{name}"] == for_java


@pytest.mark.parametrize("translate", [config.for_kafka_python, config.for_spark])
def test_a_security_setting_without_a_counterpart_is_refused_without_its_value(translate: object) -> None:
    with pytest.raises(SettingRefusedError, match=r"sasl\.oauthbearer\.config") as caught:
        translate({"bootstrap.servers": "a:1", "sasl.oauthbearer.config": "hush"})  # type: ignore[operator]
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("translate", [config.for_kafka_python, config.for_spark])
def test_certificates_are_verified_by_all_clients_or_the_setting_is_refused(
    translate: Callable[[Mapping[str, str]], object],
) -> None:
    name = "enable.ssl.certificate.verification"
    assert translate({**SECURE, name: "True"}) == translate(SECURE)
    with pytest.raises(SettingRefusedError, match=r"enable\.ssl\.certificate\.verification is 'False'"):
        translate({**SECURE, name: "False"})


NO_CONFIGURATION = [
    ("", "it is neither"),
    ("secret", "it is neither"),
    ("user:secret", "it is neither"),
    ("kafka://user:secret@broker:9092", "it is neither"),
    ("a:1,secret", "it is neither"),
    ("localhost", "it is 'localhost'"),
    ("a:1,b:99999", "it is 'a:1,b:99999'"),
    ("[]", "it is neither"),
    ("{}", "has no bootstrap.servers, only nothing"),
    ('{"sasl.password": "secret", "bootstrap.servers": ""}', "has no bootstrap.servers, only bootstrap.servers, sasl"),
    ('{"sasl.password": "secret" "bootstrap.servers": "a:1"}', "it is not JSON at line 1, column 28"),
]


@pytest.mark.parametrize(("text", "why"), NO_CONFIGURATION)
def test_what_is_no_configuration_is_refused_by_the_variables_name_and_no_secret_is_shown(text: str, why: str) -> None:
    with pytest.raises(RefusedError) as caught:
        config.parse(text)
    said = str(caught.value)
    assert said.startswith("EXACTLYONCE_KAFKA has to be HOST:PORT")
    assert why in said
    assert "secret" not in said.replace("may hold a secret", "")


@pytest.mark.parametrize("text", ["a.b-c:1", " a:1, [::1]:9092 ", '{"bootstrap.servers": "a:1"}'])
@pytest.mark.parametrize("in_file", [True, False])
def test_the_variable_takes_the_brokers_alone_too(
    text: str, in_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kafka"
    file.write_text(f"{text}\n")
    monkeypatch.setenv(config.VARIABLE, f"@{file}" if in_file else text)
    expected = json.loads(text) if "{" in text else {"bootstrap.servers": text.strip().replace(" ", "")}
    assert config.from_environment(None) == expected
    assert config.from_environment("b:2") == {"bootstrap.servers": "b:2"}


def test_a_file_that_holds_no_configuration_is_named_with_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kafka"
    file.write_text("secret")
    monkeypatch.setenv(config.VARIABLE, f"@{file}")
    with pytest.raises(RefusedError, match=f"^the file {file}, which EXACTLYONCE_KAFKA names, has to be"):
        config.from_environment(None)
