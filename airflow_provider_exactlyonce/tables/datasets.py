"""Tables as OpenLineage names them, sources and sinks alike: by the directory that their rows are in.

https://openlineage.io/docs/spec/naming has no names of its own for tables of Delta Lake and Apache Iceberg. What a
catalog calls a table is no name either: each catalog's users call the catalog as they like.
"""

from __future__ import annotations


def dataset_at(location: str) -> tuple[str, str]:
    """Return a dataset's namespace and name as OpenLineage has them of a directory.

    :param location: an absolute path, or a URL
    """
    scheme, is_url, place = location.removeprefix("file:").partition("://")
    if not is_url:
        return "file", "/" + scheme.strip("/")
    store, _, key = place.partition("/")
    user, _, host = store.rpartition("@")  # in Azure's URLs the container is there
    return f"{'s3' if scheme == 's3a' else scheme}://{host if ':' in user else store}", key.rstrip("/")
