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
