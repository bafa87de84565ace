"""The schema registry of a driver: the source of its address and credentials, and the meaning of its answers.

Only the address of the configuration is ever shown: the rest may have a password.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from airflow_provider_exactlyonce import environment
from airflow_provider_exactlyonce.exceptions import BatchFailedError, RefusedError
from airflow_provider_exactlyonce.streaming.settings import REGISTRY_VARIABLE

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

_ACCEPTED: Final = (
    'its URL, or confluent-kafka\'s configuration as JSON, as in {"url": "https://registry:8081", '
    '"basic.auth.user.info": "user:password"}, or @ and a file with either'
)
#: A registry that refuses connections is given up after some fifteen seconds, one that is silent after eighty. Then the
#: batch is attempted again.
_DEFAULTS: Final[Mapping[str, Any]] = {
    "timeout": 10,
    "max.retries": 6,
    "retries.wait.ms": 500,
    "retries.max.wait.ms": 4000,
}
_UNKNOWN: Final = (40401, 40402, 40403)  # no such subject, version, schema
_NO_RIGHT: Final = (401, 403)  # a proxy before the registry says so, too, without a code of the registry's

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class RegistryAddress:
    """How to reach a registry; pickled to the tasks, and never shown.

    :param config: confluent-kafka's configuration, as JSON
    """

    config: str = field(repr=False)

    @property
    def shown(self) -> str:
        """Where it is, without credentials."""
        urls = str(json.loads(self.config)["url"]).split(",")
        return ",".join(urlsplit(url)._replace(netloc=urlsplit(url).netloc.rpartition("@")[2]).geturl() for url in urls)


def from_environment() -> RegistryAddress:
    """Return the registry that ``EXACTLYONCE_SCHEMA_REGISTRY`` names.

    :raises RefusedError: when it names none; shows nothing that may be a secret
    """
    text, origin = environment.read(REGISTRY_VARIABLE)
    if not text:
        raise RefusedError(
            f"the job has values in a schema registry's format, and no registry is known: set {REGISTRY_VARIABLE} to "
            f"{_ACCEPTED}; in a DAG it is filled from schema_registry_conn_id of the operator"
        )
    if text.startswith("http"):
        return RegistryAddress(json.dumps({"url": text}))
    try:
        config = json.loads(text)
    except ValueError:
        config = None
    if not isinstance(config, dict) or not str(config.get("url", "")).startswith("http"):
        raise RefusedError(f"{origin} has to be {_ACCEPTED} (its text is not shown: it may hold a secret)")
    return RegistryAddress(json.dumps(config))


@functools.lru_cache
def connect(address: RegistryAddress) -> Registry:
    """Return the registry at an address; a process has one, so that all batches share its caches.

    :raises RefusedError: when its client isn't installed, or doesn't take the configuration
    """
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise RefusedError(
            f"the schema registry's client is not installed ({error.name} is missing): install "
            "airflow-provider-exactlyonce[registry]"
        ) from None
    try:
        client = SchemaRegistryClient({**_DEFAULTS, **json.loads(address.config)})
    except (ValueError, TypeError) as error:
        raise RefusedError(f"the schema registry's configuration is refused: {error}") from None
    return Registry(client, address.shown)


class Registry:
    """A schema registry. Its answer about an id stays true, and is requested once.

    :param client: confluent-kafka's, which retries unanswered requests
    :param name: where it is, for messages
    """

    def __init__(self, client: SchemaRegistryClient, name: str) -> None:
        self._client: Final = client
        self.name: Final = name

    def schema(self, number: int) -> Schema | None:
        """Return the schema with an id, None when the server that was asked has none.

        :raises BatchFailedError: when it is not known whether there is one
        """
        return self._answer(f"schema {number}", lambda: self._client.get_schema(number), none_if_unknown=True)

    def referred(self, schema: Schema) -> dict[str, str]:
        """Return the texts of the schemas that a schema refers to, by name, each after those that it refers to.

        :raises BatchFailedError: when it does not answer
        """
        schemas: dict[str, str] = {}
        for reference in schema.references or ():
            request = f"version {reference.version} of subject {reference.subject}"
            # Records that are older than its deletion have it: as schemas by their ids, it stays readable.
            ask = functools.partial(
                self._client.get_version, str(reference.subject), int(reference.version or 0), deleted=True
            )
            version = self._answer(request, ask)
            schemas |= {**self.referred(version.schema), str(reference.name): str(version.schema.schema_str)}
        return schemas

    def register(self, subject: str, kind: str, text: str) -> int:
        """Return the id of a schema under a subject, which it gets now unless it has one.

        :param kind: ``AVRO`` or ``PROTOBUF``
        :raises RefusedError: with the registry's own words: when it is not compatible with the subject's, or no schema
        :raises BatchFailedError: when it does not answer
        """
        from confluent_kafka.schema_registry import Schema

        request = f"a schema for subject {subject}"
        return self._answer(request, lambda: int(self._client.register_schema(subject, Schema(text, kind))))

    def lookup(self, subject: str, kind: str, text: str) -> int:
        """Return the id that a schema has under a subject.

        :raises RefusedError: when it has none
        :raises BatchFailedError: when it does not answer
        """
        from confluent_kafka.schema_registry import Schema

        request = f"the schema under subject {subject}"
        return self._answer(
            request, lambda: int(self._client.lookup_schema(subject, Schema(text, kind)).schema_id or 0)
        )

    def latest(self, subject: str) -> tuple[int, Schema] | None:
        """Return id and schema of a subject's latest version, None when there certainly is no such subject.

        :raises BatchFailedError: when it does not answer
        """
        self._client.clear_latest_caches()  # it may be another one than at this process's last start
        version = self._answer(
            f"the latest schema of subject {subject}",
            lambda: self._client.get_latest_version(subject),
            none_if_unknown=True,
        )
        return None if version is None else (int(version.schema_id or 0), version.schema)

    def _answer(self, request: str, ask: Callable[[], Answer], *, none_if_unknown: bool = False) -> Answer:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return ask()
        except SchemaRegistryError as error:
            if none_if_unknown and error.http_status_code == 404 and error.error_code in _UNKNOWN:
                return None  # type: ignore[return-value]
            message = f"schema registry {self.name}, {request}: {error}"
            if error.http_status_code in _NO_RIGHT:
                raise RefusedError(f"{message}; check the credentials: {REGISTRY_VARIABLE} has them") from None
            is_definite = 400 <= error.http_status_code < 500 and error.http_status_code not in (408, 429)
            if is_definite and error.error_code != SchemaRegistryError.UNKNOWN:
                raise RefusedError(message) from None
            raise BatchFailedError(message) from None
        except Exception as error:  # of whichever HTTP client confluent-kafka has found
            reason = f"{type(error).__name__}: {error}"
            raise BatchFailedError(f"schema registry {self.name} does not answer, {request}: {reason}") from None
