"""Reads the access to Google Cloud Storage from the environment, as Google's tools do: for fsspec, and for Hadoop.

Both find the application default credentials by themselves: the file that ``GOOGLE_APPLICATION_CREDENTIALS`` names, the
user's own, or the service account of the host.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

#: The file with the credentials.
CREDENTIALS: Final = "GOOGLE_APPLICATION_CREDENTIALS"
#: An emulator's address, as in Google's own libraries; it takes requests of everybody.
EMULATOR: Final = "STORAGE_EMULATOR_HOST"

#: gcsfs would first ask another service what kind of bucket it is, for a minute where there is no such service.
_KINDS_OF_BUCKETS: Final = "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"


def options_of_environment() -> dict[str, Any]:
    """Return the arguments of gcsfs."""
    return options(_emulator())


def options(emulator: str | None, token: Any = "google_default") -> dict[str, Any]:
    """Return the arguments of gcsfs: it keeps no listings, since other processes write there, too.

    :param emulator: its address, None for Google's servers
    :param token: the credentials, by default the application default credentials
    """
    os.environ.setdefault(_KINDS_OF_BUCKETS, "false")
    connection = {"token": token} if emulator is None else {"token": "anon", "endpoint_url": emulator}
    return {"use_listings_cache": False, "access": "read_write", **connection}


def system_of(place: Any) -> AbstractFileSystem:
    """Return the file system of a place, which looks for its credentials.

    :raises OSError: when it finds none, or the host's service does not answer
    """
    from google.auth.exceptions import GoogleAuthError

    try:
        return place.fs
    except GoogleAuthError as error:
        raise OSError(f"{place}: {error}") from error


def hadoop_settings() -> dict[str, str]:
    """Return the same as settings of Hadoop; none is a secret."""
    emulator = _emulator()
    return {
        "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        "fs.gs.auth.type": "APPLICATION_DEFAULT" if emulator is None else "UNAUTHENTICATED",
        # Hadoop has settings of these names for a module of its own, and here it says 64m, which is no number.
        "fs.gs.block.size": str(64 * 1024 * 1024),
        # Whether there is a directory of a file's name is not asked: each such look would cost as much as a write.
        "fs.gs.create.items.conflict.check.enable": "false",
        # Nor is the kind of the bucket, which an emulation can't tell.
        "fs.gs.hierarchical.namespace.folders.enable": "false",
        **({} if emulator is None else {"fs.gs.storage.root.url": f"{emulator}/"}),
    }


def _emulator() -> str | None:
    address = os.environ.get(EMULATOR)
    if not address:
        return None
    return (address if "://" in address else f"http://{address}").rstrip("/")
