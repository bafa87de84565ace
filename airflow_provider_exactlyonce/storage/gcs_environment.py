"""What the environment says of Google Cloud Storage, as Google's tools read it: for fsspec, and for Hadoop.

Both find the application default credentials by themselves: the file that ``GOOGLE_APPLICATION_CREDENTIALS`` names, the
user's own, or the service account of the host.
"""

from __future__ import annotations

import os
from typing import Any, Final

#: The file with the credentials: a service account's key, or a configuration of workload identity federation.
CREDENTIALS: Final = "GOOGLE_APPLICATION_CREDENTIALS"

#: An emulator's address, as in Google's own libraries; it takes requests of everybody.
_EMULATOR: Final = "STORAGE_EMULATOR_HOST"
#: gcsfs would first ask another service what kind of bucket it is, for a minute where there is no such service.
_KINDS_OF_BUCKETS: Final = "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"


def options_of_environment() -> dict[str, Any]:
    """Return what gcsfs is given: it keeps no listings, since others write there, too."""
    os.environ.setdefault(_KINDS_OF_BUCKETS, "false")
    emulator = _emulator()
    return {
        "use_listings_cache": False,
        "access": "read_write",
        "token": "anon" if emulator else "google_default",
        **({"endpoint_url": emulator} if emulator else {}),
    }


def hadoop_settings() -> dict[str, str]:
    """Return the same as settings of Hadoop; none is a secret."""
    emulator = _emulator()
    return {
        "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        "fs.gs.auth.type": "UNAUTHENTICATED" if emulator else "APPLICATION_DEFAULT",
        # Whether there is a directory of a file's name is not asked: each such look would cost as much as a write.
        "fs.gs.create.items.conflict.check.enable": "false",
        **({"fs.gs.storage.root.url": f"{emulator}/"} if emulator else {}),
    }


def _emulator() -> str | None:
    address = os.environ.get(_EMULATOR)
    return address and (address if "://" in address else f"http://{address}").rstrip("/")
