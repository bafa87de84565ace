"""Connections to PostgreSQL: the source of their parameters, and the translation of its errors.

No parameter is ever logged or shown: a password may be among them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from airflow_provider_exactlyonce import environment
from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    ExactlyOnceError,
    RecordRefusedError,
    RefusedError,
)
from airflow_provider_exactlyonce.streaming.settings import POSTGRES_VARIABLE

#: A peer that is gone is noticed within seconds, and a silent one is given up.
_DEFAULTS: Final = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
_FORCED: Final = {"client_encoding": "UTF8"}
_REFUSED_USER: Final = re.compile(
    r"password|no pg_hba.conf entry|(role|database) \"[^\"]*\" does not exist|permission denied"
)
_REFUSED_ROW: Final = ("22", "23")  # classes of SQLSTATE: data exception, integrity constraint violation
#: After a wait for a lock commits made meanwhile are visible, whatever database and user have as their default.
BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
AMBIGUOUS_KEY: Final = "21000"  # ON CONFLICT would touch a row twice


@dataclass(frozen=True)
class Parameters:
    """How to connect, in libpq's words; pickled to the tasks, and never shown.

    :param name: of the connection, for messages
    """

    name: str
    given: Mapping[str, str] = field(repr=False)


def parameters_of(conn_id: str) -> Parameters:
    """Return the parameters of a connection, from ``EXACTLYONCE_POSTGRES``, else from libpq's own environment.

    :raises RefusedError: when it is not among them
    """
    given = environment.parameters_of(POSTGRES_VARIABLE, conn_id, "libpq's parameters", "postgres_conn_ids")
    return Parameters("libpq's environment", {}) if given is None else Parameters(f"connection {conn_id}", given)


def connect(parameters: Parameters, application: str) -> psycopg.Connection[Any]:
    """Open a connection, outside of a transaction; its transactions are as :data:`BEGIN` begins them.

    :param application: its name in the server's list of sessions
    :raises RefusedError: when the server refuses this user or database
    :raises BatchFailedError: when there is no answer
    """
    words = {**_DEFAULTS, **parameters.given, **_FORCED, "application_name": application}
    try:
        connection = psycopg.connect("", autocommit=True, prepare_threshold=None, **words)  # type: ignore[arg-type]
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # in each BEGIN, no setting of the session
        return connection
    except psycopg.ProgrammingError as error:
        raise RefusedError(f"PostgreSQL, {parameters.name}: {error}") from error
    except psycopg.Error as error:
        message = " ".join(str(error).split())  # libpq gives advice in further lines
        if _REFUSED_USER.search(message):
            raise RefusedError(f"PostgreSQL, {parameters.name}: {message}") from error
        raise BatchFailedError(f"PostgreSQL does not answer, {parameters.name}: {message}") from error


def for_tasks(parameters: Parameters, connection: psycopg.Connection[Any]) -> Parameters:
    """Return the parameters that an open connection has used, wherever libpq found them on this host."""
    used = {name: value for name, value in connection.info.get_parameters().items() if name != "application_name"}
    if connection.info.password:
        used["password"] = connection.info.password
    return Parameters(parameters.name, {**parameters.given, **used})


@contextmanager
def translated_errors(what: str, table: str) -> Iterator[None]:
    """Turn psycopg's errors into the project's, and roll nothing back.

    :param what: the action, for the message
    :param table: the table that refuses a row, when one is refused
    :raises RecordRefusedError: a row is refused for its content
    :raises BatchFailedError: everything else
    """
    try:
        yield
    except psycopg.Error as error:
        raise meaning(error, what, table) from error


def meaning(error: psycopg.Error, what: str, table: str) -> ExactlyOnceError:
    """Return the project's error for an error of PostgreSQL, see :func:`translated_errors`."""
    state = error.sqlstate or ""
    if state[:2] not in _REFUSED_ROW and state != AMBIGUOUS_KEY:
        return BatchFailedError(f"PostgreSQL, {what}: {type(error).__name__}: {error}")
    diagnosis = error.diag
    parts = [diagnosis.message_primary or str(error), diagnosis.message_detail, diagnosis.context]
    constraint = f", constraint {diagnosis.constraint_name}" if diagnosis.constraint_name else ""
    return RecordRefusedError(
        f"table {table} refuses a row{constraint}, {what}: {'. '.join(part.rstrip('.') for part in parts if part)}"
    )
