"""Reads the access to an S3 server from the environment, as Amazon's tools do: for fsspec, and for Hadoop.

Both read ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY`` and ``AWS_SESSION_TOKEN`` by themselves. Executors on other
hosts have another environment: they get the keys as settings of Hadoop, which Spark sends them and never shows.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

from airflow_provider_exactlyonce import environment
from airflow_provider_exactlyonce.exceptions import RefusedError

#: Amazon's variables as JSON, or ``@`` and a file with it: for a driver in a cluster, whose environment all can read.
VARIABLE: Final = "EXACTLYONCE_S3"

#: The variables of a key, its secret, and the token that credentials which end have besides.
KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

_ENDPOINT: Final = "AWS_ENDPOINT_URL"
_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
#: Of a server that is not Amazon's, which has none and wants one in the signature.
_ANY_REGION: Final = "us-east-1"


def take_up() -> None:
    """Put the variables in :data:`VARIABLE` into this process's environment; before a place on S3 is opened.

    :raises RefusedError: when it is no such JSON; shows nothing that may be a secret
    """
    text, where = environment.read(VARIABLE)
    if not text:
        return
    try:
        variables = json.loads(text)
    except ValueError:
        variables = None
    if not isinstance(variables, dict) or not all(name.startswith("AWS_") for name in variables):
        raise RefusedError(f"{where} has to be a JSON object of AWS_… variables (not shown: it may hold a secret)")
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = str(value)


def options_of_environment() -> dict[str, Any]:
    """Return the arguments of s3fs: it keeps no listings, since other processes write there, too."""
    options: dict[str, Any] = {"use_listings_cache": False}
    if region := _region():
        options["client_kwargs"] = {"region_name": region}
    if endpoint := os.environ.get(_ENDPOINT):
        options |= {"endpoint_url": endpoint, "config_kwargs": {"s3": {"addressing_style": "path"}}}
    return options


def hadoop_settings() -> dict[str, str]:
    """Return the same as settings of Hadoop."""
    settings = {
        # Hadoop's own list lacks profiles and web identities, which Python finds.
        "fs.s3a.aws.credentials.provider": "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
        "fs.s3a.input.stream.type": "classic",  # the default needs further libraries
        # Amazon's asynchronous client, which is the other way, takes the 100 Continue of Spark's Netty for the answer.
        "fs.s3a.optimized.copy.from.local.enabled": "false",
    }
    if region := _region():
        settings["fs.s3a.endpoint.region"] = region
    if endpoint := os.environ.get(_ENDPOINT):
        settings |= {"fs.s3a.endpoint": endpoint, "fs.s3a.path.style.access": "true"}
    return settings


def hadoop_keys() -> dict[str, str]:
    """Return the keys as settings of Hadoop, secret ones; nothing where there are none, as with a host's own role."""
    key, secret, token = map(os.environ.get, KEYS)
    if not (key and secret):
        return {}
    kind = "TemporaryAWSCredentialsProvider" if token else "SimpleAWSCredentialsProvider"
    return {
        "fs.s3a.aws.credentials.provider": f"org.apache.hadoop.fs.s3a.{kind}",
        "fs.s3a.access.key": key,
        "fs.s3a.secret.key": secret,
        **({"fs.s3a.session.token": token} if token else {}),
    }


def _region() -> str | None:
    region = next((os.environ[name] for name in _REGIONS if os.environ.get(name)), None)
    return region or (_ANY_REGION if os.environ.get(_ENDPOINT) else None)
