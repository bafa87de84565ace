"""The one place that turns an Airflow connection of type ``kafka`` into client configuration.

The connection is the Kafka provider's: its extra is librdkafka configuration, and its hook adds managed authentication.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from airflow_provider_exactlyonce.exceptions import RefusedError, SettingRefusedError

#: The cluster's address and our credentials. The rest of an extra (groups, offsets, batching) is for other clients.
_NAMES: Final = frozenset({"bootstrap.servers", "client.id", "client.dns.lookup", "client.rack", "oauth_cb"})
_PREFIXES: Final = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "https.", "broker.address.", "socket.")


def client_config(conn_id: str) -> dict[str, Any]:
    """Return the configuration of our confluent-kafka clients.

    Blocks while the connection is fetched; an async caller uses a thread.

    :param conn_id: connection of type ``kafka``
    :raises AirflowNotFoundException: when there is no such connection
    :raises RefusedError: when it is no client's configuration, as without ``bootstrap.servers``
    """
    from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook

    try:
        config = KafkaBaseHook(kafka_config_id=conn_id)._build_config()  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise RefusedError(
            f"connection {conn_id}: {error} It is to be of type kafka, and its extra is librdkafka's configuration, as "
            'in {"bootstrap.servers": "HOST:9092"}'
        ) from error
    return {  # null is librdkafka's word for a default, and no other client's
        name: value
        for name, value in config.items()
        if value is not None and (name in _NAMES or name.startswith(_PREFIXES))
    }


def source_config(conn_id: str) -> dict[str, Any]:
    """Return the same of a connection that the sources of a pipeline name, as its ledger has it.

    For a connection to the store or catalog of a table, the options of delta-rs or pyiceberg.

    :raises RefusedError: when there is no such connection
    """
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    from airflow_provider_exactlyonce.hooks import connections

    try:
        if Connection.get(conn_id).conn_type in connections.TYPES:
            return dict(json.loads(connections.stores([conn_id]))[conn_id])
        return client_config(conn_id)
    except (AirflowNotFoundException, RefusedError) as error:
        raise RefusedError(f"the pipeline's sources are read through the connection {conn_id}: {error}") from error


def sources_config(conn_ids: Sequence[str]) -> str:
    """Return the configurations of connections that sources name for a driver's environment, as JSON.

    :param conn_ids: connections of type ``kafka``
    :raises SettingRefusedError: when one holds a callback, which can't be handed to another process
    """
    return json.dumps({conn_id: json.loads(driver_config(conn_id)) for conn_id in conn_ids})


def driver_config(conn_id: str) -> str:
    """Return the configuration for a driver's environment, as JSON.

    :param conn_id: connection of type ``kafka``
    :raises SettingRefusedError: when it holds a callback, which can't be handed to another process
    """
    config = client_config(conn_id)
    for name, value in config.items():
        if callable(value):
            raise SettingRefusedError(
                f"{name} of connection {conn_id}",
                "a callback",
                None,
                "it can't be handed to the driver's process; use SASL/SCRAM, SASL/PLAIN or TLS certificates",
            )
    return json.dumps({name: str(value) for name, value in config.items()})
