"""Connections of sinks by name, as an environment variable has them: the driver's half of what operators fill."""

from __future__ import annotations

import json
import os

from airflow_provider_exactlyonce import environment
from airflow_provider_exactlyonce.exceptions import RefusedError


def parameters_of(variable: str, conn_id: str, words: str, filled_by: str) -> dict[str, str] | None:
    """Return the parameters of a connection, None when the variable is not set. No parameter is ever shown.

    :param variable: its value is JSON, parameters by connection, or ``@`` and the path of a file with it
    :param words: whose words the parameters are in, for messages
    :param filled_by: the argument of the operators that fills it, for messages
    :raises RefusedError: when the connection is not among them
    """
    if not os.environ.get(variable):
        return None
    text, where = environment.read(variable)
    try:
        by_id = json.loads(text)
    except ValueError:
        raise RefusedError(f"{where} is not JSON (its text is not shown: it may hold a secret)") from None
    if not isinstance(by_id, dict) or not isinstance(by_id.get(conn_id), dict):
        raise RefusedError(
            f"{where} has no connection {conn_id}. It is a JSON object with {words} by connection; in a DAG it is "
            f'filled from {filled_by}=["{conn_id}"] of the operator'
        )
    return {name: str(value) for name, value in by_id[conn_id].items()}
