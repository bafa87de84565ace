"""Tables as OpenLineage names them."""

from __future__ import annotations

from airflow_provider_exactlyonce.tables.positions import DELTA, parse


def dataset_at(location: str) -> tuple[str, str]:
    """Return a dataset's namespace and name as OpenLineage has them of a directory.

    :param location: an absolute path, or a URL
    """
    scheme, is_url, place = location.removeprefix("file:").partition("://")
    if not is_url:
        return "file", "/" + scheme.lstrip("/")
    store, _, key = place.partition("/")
    user, _, host = store.rpartition("@")  # in Azure's URLs the container is there
    return f"{'s3' if scheme == 's3a' else scheme}://{host if ':' in user else store}", key.rstrip("/")


def dataset_of(table: str) -> tuple[str, str]:
    """Return the namespace and name of a source table; of one in a catalog what the catalog calls it.

    :param table: its name, as ledgers have it
    """
    kind, place = parse(table)
    if kind == DELTA:
        return dataset_at(place)
    catalog, _, name = place.partition(".")
    return f"{kind}://{catalog}", name
