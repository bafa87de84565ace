"""Connections of sinks by name, as an environment variable has them: the driver's half of what operators fill."""

from __future__ import annotations

import json
import os
from pathlib import Path

from airflow_provider_exactlyonce.exceptions import RefusedError


def parameters_of(variable: str, conn_id: str, words: str, filled_by: str) -> dict[str, str] | None:
    """Return the parameters of a connection, None when the variable is not set. No parameter is ever shown.

    :param variable: its value is JSON, parameters by connection, or ``@`` and the path of a file with it
    :param words: whose words the parameters are in, for messages
    :param filled_by: the argument of the operators that fills it, for messages
    :raises RefusedError: when the connection is not among them
    """
    text = os.environ.get(variable)
    if not text:
        return None
    try:
        by_id = json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
    except OSError as error:
        raise RefusedError(f"{variable} names the file {text[1:]}, which can't be read here: {error}") from None
    except ValueError:
        raise RefusedError(f"{variable} is not JSON (its text is not shown: it may hold a secret)") from None
    if not isinstance(by_id, dict) or not isinstance(by_id.get(conn_id), dict):
        raise RefusedError(
            f"{variable} has no connection {conn_id}. It is a JSON object with {words} by connection; in a DAG it is "
            f'filled from {filled_by}=["{conn_id}"] of the operator'
        )
    return {name: str(value) for name, value in by_id[conn_id].items()}
