"""One client configuration, in librdkafka's names, for the three Kafka clients in use.

Users keep one Airflow connection of type ``kafka``; its extra is what confluent-kafka takes. kafka-python and Spark's
Java client get the same cluster and credentials under their own names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_exactlyonce import environment
from airflow_provider_exactlyonce.exceptions import RefusedError, SettingRefusedError

#: Environment variable that holds the configuration, as JSON or as the brokers alone, or ``@`` and a file with it: a
#: command line is for everybody to read, and so is the environment of a driver that a cluster runs.
VARIABLE: Final = "EXACTLYONCE_KAFKA"
#: The same for the clusters of sources that name a connection: configurations by connection.
SOURCES_VARIABLE: Final = "EXACTLYONCE_SOURCES"

_ACCEPTED: Final = (
    'HOST:PORT[,HOST:PORT...], or librdkafka\'s configuration as JSON, as in {"bootstrap.servers": "localhost:9092"}'
)
_SERVER: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")
#: What may be shown of a text that is no configuration: brokers without a port, or with a wrong one.
_NEARLY: Final = re.compile(r"(localhost|[A-Za-z0-9._-]+:[0-9]*)(,\s*(localhost|[A-Za-z0-9._-]+:[0-9]*))*")

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
_VERIFICATION: Final = "enable.ssl.certificate.verification"
_SECURITY: Final = ("security.", "sasl.", "ssl.")
_JAAS_MODULES: Final[Mapping[str, str]] = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def parse(text: str, where: str = VARIABLE) -> dict[str, str]:
    """Read a configuration: a JSON object with ``bootstrap.servers``, or ``host:port`` of one broker or several.

    :param where: what holds it, for the error
    :raises RefusedError: when it is neither; shows nothing that may be a secret
    """
    servers = [server.strip() for server in text.split(",")]
    if all(_is_server(server) for server in servers):
        return {"bootstrap.servers": ",".join(servers)}
    if not text.lstrip().startswith("{"):
        shown = repr(text) if _NEARLY.fullmatch(text) else "neither (not shown: it may hold a secret)"
        raise RefusedError(f"{where} has to be {_ACCEPTED}; it is {shown}")
    try:
        config = json.loads(text)
    except ValueError as error:
        position = (
            f"line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else "somewhere"
        )
        raise RefusedError(
            f"{where} has to be {_ACCEPTED}; it is not JSON at {position} (not shown: it may hold a secret)"
        ) from None
    if not config.get("bootstrap.servers"):
        names = ", ".join(sorted(config)) or "nothing"
        raise RefusedError(f"{where} has to be {_ACCEPTED}; its JSON has no bootstrap.servers, only {names}")
    return {str(name): str(value) for name, value in config.items()}


def _is_server(text: str) -> bool:
    match = _SERVER.fullmatch(text)
    return match is not None and 0 < int(match[2]) < 2**16


def from_environment(bootstrap_servers: str | None) -> dict[str, str]:
    """Return the configuration in ``EXACTLYONCE_KAFKA``, with the brokers replaced when they are given.

    :raises RefusedError: when neither names a cluster
    """
    text, where = environment.read(VARIABLE)
    if bootstrap_servers:
        return {**(parse(text, where) if text else {}), "bootstrap.servers": bootstrap_servers}
    if not text:
        raise RefusedError(f"no Kafka cluster: pass --bootstrap-servers HOST:PORT, or set {VARIABLE} to {_ACCEPTED}")
    return parse(text, where)


def for_confluent(config: Mapping[str, str]) -> dict[str, str | int | float | bool]:
    """Return the configuration for confluent-kafka, without its log of failed connections.

    A failure reaches the caller as an exception anyway.
    """
    return {"log_level": 2, **config}


def for_kafka_python(config: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration in kafka-python's names, without the settings of consumers and producers.

    :raises SettingRefusedError: when a security setting has no counterpart, rather than connecting without it
    """
    _check_verification(config)
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
    _check_verification(config)
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


def _check_verification(config: Mapping[str, str]) -> None:
    value = config.get(_VERIFICATION, "true")
    if value.lower() not in ("true", "t", "1"):  # librdkafka's words
        reason = "only librdkafka can leave it out: give ssl.ca.location the authority of the brokers' certificates"
        raise SettingRefusedError(_VERIFICATION, value, "true", reason)


def _jaas(mechanism: str, config: Mapping[str, str]) -> str:
    if mechanism not in _JAAS_MODULES:
        raise SettingRefusedError("sasl.mechanism", mechanism, "one of " + ", ".join(_JAAS_MODULES), "not supported")
    # JAAS escapes quotes and backslashes as JSON does, and knows nothing of \u.
    username, password = (
        json.dumps(config.get(f"sasl.{part}", ""), ensure_ascii=False) for part in ("username", "password")
    )
    return f"{_JAAS_MODULES[mechanism]} required username={username} password={password};"
