"""One client configuration, in librdkafka's names, for the three Kafka clients in use.

Users keep one Airflow connection of type ``kafka``; its extra is what confluent-kafka takes. kafka-python and Spark's
Java client get the same cluster and credentials under their own names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce.exceptions import RefusedError, SettingRefusedError

#: Environment variable that holds the configuration as JSON, or ``@`` and a file with it: a command line is for
#: everybody to read, and so is the environment of a driver that a cluster runs.
VARIABLE: Final = "EXACTLYONCE_KAFKA"

_KAFKA_PYTHON: Final[Mapping[str, str]] = {
    "bootstrap.servers": "bootstrap_servers",
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}
_HOST_NAME_CHECK: Final = "ssl.endpoint.identification.algorithm"
_SECURITY: Final = ("security.", "sasl.", "ssl.")
_JAAS_MODULES: Final[Mapping[str, str]] = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def parse(text: str) -> dict[str, str]:
    """Read a configuration from JSON.

    :raises RefusedError: when it isn't a JSON object with ``bootstrap.servers``
    """
    try:
        config = json.loads(text)
    except ValueError:
        raise RefusedError(
            "the Kafka configuration is not JSON (its text is not shown: it may hold a secret)"
        ) from None
    if not isinstance(config, dict) or not config.get("bootstrap.servers"):
        raise RefusedError('the Kafka configuration needs "bootstrap.servers", for example "localhost:9092"')
    return {str(name): str(value) for name, value in config.items()}


def from_environment(bootstrap_servers: str | None) -> dict[str, str]:
    """Return the configuration in ``EXACTLYONCE_KAFKA``, with the brokers replaced when they are given.

    :raises RefusedError: when neither names a cluster
    """
    text = os.environ.get(VARIABLE)
    if text and text.startswith("@"):
        try:
            text = Path(text[1:]).read_text()
        except OSError as error:
            raise RefusedError(f"{VARIABLE} names the file {text[1:]}, which can't be read here: {error}") from error
    if bootstrap_servers:
        return {**(parse(text) if text else {}), "bootstrap.servers": bootstrap_servers}
    if not text:
        raise RefusedError(f"no Kafka cluster: pass --bootstrap-servers or set {VARIABLE}")
    return parse(text)


def for_confluent(config: Mapping[str, str]) -> dict[str, str | int | float | bool]:
    """Return the configuration for confluent-kafka, whose own log would print a line for each failed connection.

    What failed reaches the caller as an exception anyway.
    """
    return {"log_level": 2, **config}


def for_kafka_python(config: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration in kafka-python's names; what only consumers or producers use is left out.

    :raises SettingRefusedError: when a security setting has no counterpart, rather than connecting without it
    """
    translated: dict[str, Any] = {}
    for name, value in config.items():
        if name in _KAFKA_PYTHON:
            translated[_KAFKA_PYTHON[name]] = value
        elif name == _HOST_NAME_CHECK:
            translated["ssl_check_hostname"] = value != "none"
        elif name.startswith(_SECURITY):
            raise SettingRefusedError(name, "set", None, "the transaction session has no counterpart for it")
    translated["bootstrap_servers"] = translated["bootstrap_servers"].split(",")
    if "security_protocol" in translated:
        translated["security_protocol"] = translated["security_protocol"].upper()
    return translated


def for_spark(config: Mapping[str, str]) -> dict[str, str]:
    """Return the options of Spark's Kafka source.

    :raises SettingRefusedError: when a security setting has no counterpart, rather than connecting without it
    """
    options = {"kafka.bootstrap.servers": config["bootstrap.servers"]}
    for name, value in config.items():
        if not name.startswith(_SECURITY):
            continue
        if name == "security.protocol":
            options["kafka.security.protocol"] = value.upper()
        elif name in ("sasl.mechanism", "sasl.mechanisms"):
            options["kafka.sasl.mechanism"] = value
            options["kafka.sasl.jaas.config"] = _jaas(value, config)
        elif name == "ssl.ca.location":
            options |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": value}
        elif name == _HOST_NAME_CHECK:
            options[f"kafka.{name}"] = "" if value == "none" else value
        elif name not in ("sasl.username", "sasl.password"):
            raise SettingRefusedError(name, "set", None, "Spark's Kafka source has no counterpart for it")
    return options


def _jaas(mechanism: str, config: Mapping[str, str]) -> str:
    if mechanism not in _JAAS_MODULES:
        raise SettingRefusedError("sasl.mechanism", mechanism, "one of " + ", ".join(_JAAS_MODULES), "not supported")
    # JAAS escapes quotes and backslashes as JSON does, and knows nothing of \u.
    username, password = (
        json.dumps(config.get(f"sasl.{part}", ""), ensure_ascii=False) for part in ("username", "password")
    )
    return f"{_JAAS_MODULES[mechanism]} required username={username} password={password};"
