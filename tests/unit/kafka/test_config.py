from __future__ import annotations

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


@pytest.mark.parametrize("text", ["", "secret", "[]", "{}", '{"bootstrap.servers": ""}'])
def test_what_is_no_configuration_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(RefusedError) as caught:
        config.parse(text)
    assert "secret" not in str(caught.value).replace("may hold a secret", "")
