"""What a table asks of those who write to it: what this sink can't keep is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.exceptions import RefusedError

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

_FORMAT_VERSION: Final = 2
_ENCRYPTION: Final = "encryption.key-id"
_METRICS: Final = "write.metadata.metrics."


def check_table(table: TableMetadata, where: str) -> None:
    """Check that this sink can write to a table.

    :param where: sink and table, for messages
    :raises RefusedError: naming the property
    """
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


def of_metrics(table: TableMetadata) -> dict[str, str]:
    """Return the properties by which a table says which statistics its files have."""
    return {name: value for name, value in table.properties.items() if name.startswith(_METRICS)}
