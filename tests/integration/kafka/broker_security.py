"""What an embedded broker needs to ask its clients who they are, and to let them do only what they may.

Beside its secure listeners the broker keeps the plain one on the loopback interface, for itself and for administration:
who connects there is the super user. For development and tests.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.devkit.configuration import HOST

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

_PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_VALIDITY: Final = timedelta(days=30)


@dataclass(frozen=True, kw_only=True)
class Certificates:
    """Files in PEM.

    :param authority: the certificate that clients trust
    :param broker: the broker's key and certificate
    """

    authority: Path
    broker: Path


def properties(certificates: Certificates, plain_users: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a broker with TLS, SASL (PLAIN and SCRAM-SHA-512) and ACLs.

    Whoever has no ACL may do nothing. SCRAM users are made through an admin client on the plain listener.

    :param plain_users: {user: password} of SASL/PLAIN
    """
    users = " ".join(f"user_{name}={json.dumps(password)}" for name, password in plain_users.items())
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.broker),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    }
    for listener in ("sasl_plaintext", "sasl_ssl"):
        settings[f"listener.name.{listener}.plain.sasl.jaas.config"] = f"{_PLAIN_MODULE} required {users};"
        settings[f"listener.name.{listener}.scram-sha-512.sasl.jaas.config"] = f"{_SCRAM_MODULE} required;"
    return settings


def make_certificates(folder: Path) -> Certificates:
    """Make an authority and a certificate of the broker's address, signed by it."""
    authority, authority_key = _certificate("exactlyonce development authority", None)
    broker, broker_key = _certificate(HOST, (authority, authority_key))
    made = Certificates(authority=folder / "authority.pem", broker=folder / "broker.pem")
    folder.mkdir(parents=True, exist_ok=True)
    made.authority.write_bytes(_pem(authority))
    made.broker.touch(mode=0o600)
    made.broker.write_bytes(_pem_of_key(broker_key) + _pem(broker))
    return made


def _certificate(
    name: str, issuer: tuple[Certificate, EllipticCurvePrivateKey] | None
) -> tuple[Certificate, EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    signing_key = issuer[1] if issuer else key
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + _VALIDITY)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
    )
    if issuer is not None:
        address = x509.IPAddress(ipaddress.ip_address(HOST))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    return builder.sign(signing_key, hashes.SHA256()), key


def _pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _pem_of_key(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
