"""What the environment says of an S3 server, as Amazon's tools read it: for fsspec, and for Hadoop.

Both read ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY`` and ``AWS_SESSION_TOKEN`` by themselves, so no secret passes
through here.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any, Final

from airflow_provider_exactlyonce.exceptions import RefusedError

_ENDPOINT: Final = "AWS_ENDPOINT_URL"
_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
#: Of a server that is not Amazon's, which has none and wants one in the signature.
_ANY_REGION: Final = "us-east-1"


def options_of_environment() -> dict[str, Any]:
    """Return what s3fs is given: it keeps no listings, since others write there, too.

    :raises RefusedError: when it is not installed
    """
    if importlib.util.find_spec("s3fs") is None:
        raise RefusedError(
            "s3fs, which reads and writes s3:, is not installed: install airflow-provider-exactlyonce[s3]"
        )
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


def _region() -> str | None:
    named = next((os.environ[name] for name in _REGIONS if os.environ.get(name)), None)
    return named or (_ANY_REGION if os.environ.get(_ENDPOINT) else None)
