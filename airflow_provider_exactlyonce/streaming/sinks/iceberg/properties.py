"""A table's requirements of its writers: those that this sink can't keep are refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from airflow_provider_exactlyonce.exceptions import RefusedError

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

_FORMAT_VERSION: Final = 2
_ENCRYPTION: Final = "encryption.key-id"
_PATHS: Final = ("write.data.path", "write.metadata.path")
_METRICS: Final = "write.metadata.metrics."


def check_table(table: TableMetadata, where: str) -> None:
    """Check that this sink can write to a table.

    :param where: sink and table, for messages
    :raises RefusedError: naming the property or the location
    """
    for location in (table.location, *filter(None, map(table.properties.get, _PATHS))):
        check_location(location, where)
    if table.format_version != _FORMAT_VERSION:
        raise RefusedError(
            f"{where} has format version {table.format_version}; this sink writes version {_FORMAT_VERSION}: "
            + (
                f"ALTER TABLE … SET TBLPROPERTIES ('format-version'='{_FORMAT_VERSION}')"
                if table.format_version < _FORMAT_VERSION
                else "use another table"
            )
        )
    if (key := table.properties.get(_ENCRYPTION)) is not None:
        raise RefusedError(f"{where} has {_ENCRYPTION}={key!r}, and this sink does not encrypt: use another table")


def check_location(location: str, where: str) -> None:
    """Check that pyiceberg has a path of its own for each file of a location: it ends a URL's at ``#`` and ``?``.

    :param where: the table, for messages
    :raises RefusedError: when it has not
    """
    if urlsplit(location).scheme and (cut := next((letter for letter in location if letter in "#?"), None)):
        raise RefusedError(
            f"{where} is in {location!r}, and pyiceberg ends the path at {cut!r}, so that all files would be one: use "
            f"a location without {cut!r}"
        )


def of_metrics(table: TableMetadata) -> dict[str, str]:
    """Return the table's properties that choose the statistics of its files."""
    return {name: value for name, value in table.properties.items() if name.startswith(_METRICS)}
