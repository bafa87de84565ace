"""Values of environment variables that may stand in a file, as secrets do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.exceptions import RefusedError

#: {connection: what delta-rs or pyiceberg are told of the stores and catalogs of tables} as JSON, or @ and a file.
STORES_VARIABLE: Final = "EXACTLYONCE_STORES"


def read(variable: str) -> tuple[str, str]:
    """Return the text of a variable, empty when it is not set, and the name of its place for messages.

    :param variable: its value is the text, or ``@`` and the path of a file with it
    :raises RefusedError: when that file can't be read
    """
    text = os.environ.get(variable, "").strip()
    if not text.startswith("@"):
        return text, variable
    try:
        return Path(text[1:]).read_text().strip(), f"the file {text[1:]}, which {variable} names,"
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"{variable} names the file {text[1:]}, which can't be read here: {error}") from None


def parameters_of(variable: str, conn_id: str, words: str, filled_by: str) -> dict[str, str] | None:
    """Return the parameters of a connection, None when the variable is not set. No parameter is ever shown.

    :param variable: its value is JSON, parameters by connection, or ``@`` and the path of a file with it
    :param words: whose words the parameters are in, for messages
    :param filled_by: the argument of the operators that fills it, for messages
    :raises RefusedError: when the connection is not among them
    """
    if not os.environ.get(variable):
        return None
    text, source = read(variable)
    try:
        by_id = json.loads(text)
    except ValueError:
        raise RefusedError(f"{source} is not JSON (its text is not shown: it may hold a secret)") from None
    if not isinstance(by_id, dict) or not isinstance(by_id.get(conn_id), dict):
        raise RefusedError(
            f"{source} has no connection {conn_id}. It is a JSON object with {words} by connection; in a DAG it is "
            f'filled from {filled_by}=["{conn_id}"] of the operator'
        )
    return {name: str(value) for name, value in by_id[conn_id].items()}
