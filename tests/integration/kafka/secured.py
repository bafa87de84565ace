"""A broker with TLS, SASL and ACLs, and users on it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from tests.integration.kafka import broker_security

SECURITY_PAGE = Path(__file__).parents[3] / "docs" / "security.md"
PLAIN_USER = "plain-user"
_TYPES = {"topic": ResourceType.TOPIC, "transactional id": ResourceType.TRANSACTIONAL_ID, "group": ResourceType.GROUP}


@dataclass(frozen=True)
class Right:
    """One row of the table in docs/security.md."""

    resource: str
    name: str
    operation: str

    def of(self, names: Mapping[str, str]) -> Right:
        """Return the right on real names in place of the table's."""
        name = re.sub(r"[A-Z]+", lambda match: names[match[0]], self.name)
        return Right(self.resource, name, self.operation)

    @property
    def in_capitals(self) -> str:
        """The operation as Kafka's protocol spells it."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.operation).upper()


def documented_rights() -> list[Right]:
    rows = SECURITY_PAGE.read_text().split("<!-- rights:")[1].split("<!-- end -->")[0].splitlines()[3:]
    return [Right(*(cell.strip() for cell in row.split("|")[1:4])) for row in rows if row]


@dataclass(frozen=True)
class SecuredBroker:
    """A running broker, its authority's certificate, and an admin client that may do everything."""

    broker: EmbeddedBroker
    authority: Path
    admin: AdminClient
    plain_password: str

    @property
    def open_config(self) -> dict[str, str]:
        """Configuration of the super user."""
        return {"bootstrap.servers": self.broker.bootstrap_servers}

    def config(
        self, user: str, password: str, *, protocol: str = "SASL_SSL", mechanism: str = "SCRAM-SHA-512"
    ) -> dict[str, str]:
        config = {
            "bootstrap.servers": self.broker.secure_servers(protocol),
            "security.protocol": protocol,
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }
        return {**config, "ssl.ca.location": str(self.authority)} if protocol.endswith("SSL") else config

    def make_user(self, password: str) -> str:
        """Make a user of SCRAM-SHA-512, who may do nothing."""
        user = f"user-{uuid.uuid4().hex[:8]}"
        credentials = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        upsertion = UserScramCredentialUpsertion(user, credentials, password.encode())
        self.admin.alter_user_scram_credentials([upsertion])[user].result(30)
        return user

    def make_topic(self, partitions: int = 2) -> str:
        name = f"secured-{uuid.uuid4().hex[:8]}"
        self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
        return name

    def grant(self, user: str, rights: Sequence[Right]) -> None:
        bindings = [
            AclBinding(
                _TYPES[right.resource],
                right.name,
                ResourcePatternType.LITERAL,
                f"User:{user}",
                "*",
                AclOperation[right.in_capitals],
                AclPermissionType.ALLOW,
            )
            for right in rights
        ]
        for future in self.admin.create_acls(bindings).values():
            future.result(30)


@contextmanager
def secured_broker(folder: Path) -> Iterator[SecuredBroker]:
    certificates = broker_security.make_certificates(folder / "certificates")
    password = uuid.uuid4().hex
    settings = broker_security.properties(certificates, {PLAIN_USER: password})
    with EmbeddedBroker(folder / "broker", protocols=("SASL_PLAINTEXT", "SASL_SSL"), properties=settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 2})
        yield SecuredBroker(broker, certificates.authority, admin, password)
