"""A table's requirements of its writers: features and properties that this sink can't keep are refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.delta.log import actions, versions
from airflow_provider_exactlyonce.streaming.sinks.delta.storage import DeltaFiles

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: Features that ask nothing of one who appends plain files. Where they are used further (a CHECK constraint, a
#: generated column), the table's properties and columns say so.
_FEATURES: Final = frozenset(
    {
        *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "identityColumns"),
        *("columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"),
    }
)
_EXPIRES: Final = "delta.setTransactionRetentionDuration"
_MAPPING: Final = "delta.columnMapping.mode"
_CONSTRAINT: Final = "delta.constraints."
_VECTORS: Final = "deletionVectors"
_REFUSED: Final = {
    "delta.enableRowTracking": "rows would need numbers of their own",
    "delta.enableInCommitTimestamps": "delta-rs writes no such times",
    "delta.enableIcebergCompatV1": "files would have to fit Iceberg, too",
    "delta.enableIcebergCompatV2": "files would have to fit Iceberg, too",
}
#: What is refused where rows are replaced; the second only where others of their files are written anew.
_APPEND_ONLY: Final = {"delta.appendOnly": "nothing may be taken out of it"}
_COPIES_ONLY: Final = {"delta.enableChangeDataFeed": "its feed would have the rows that are only copied as changed"}
#: Options of delta-rs with which of two writers of one version both may succeed.
_UNSAFE: Final = ("aws_s3_allow_unsafe_rename", "allow_unsafe_rename", "mount_allow_unsafe_rename")


def check_table(table: DeltaTable, partition_by: tuple[str, ...], where: str) -> None:
    """Check that this sink can write to a table.

    :param partition_by: what the sink declares
    :param where: sink and table, for messages
    :raises RefusedError: naming the feature, the property or the columns
    """
    protocol, metadata = table.protocol(), table.metadata()
    _check_known({*(protocol.reader_features or ()), *(protocol.writer_features or ())}, where)
    configuration = metadata.configuration
    if (expiry := configuration.get(_EXPIRES)) is not None:
        raise RefusedError(
            f"{where} has {_EXPIRES}={expiry!r}: a pipeline that is stopped for longer would lose its claim and the "
            f"number of its newest commit. Remove it: ALTER TABLE … UNSET TBLPROPERTIES ('{_EXPIRES}')"
        )
    if configuration.get(_MAPPING, "none") != "none":
        raise RefusedError(f"{where} maps its columns ({_MAPPING}={configuration[_MAPPING]!r}): use another table")
    for name, value in configuration.items():
        if name in _REFUSED and str(value).lower() == "true":
            raise RefusedError(f"{where} has {name}={value!r}: {_REFUSED[name]}. Use another table")
        if name.startswith(_CONSTRAINT):
            raise RefusedError(f"{where} has the constraint {name}={value!r}, which this sink does not check: drop it")
    if list(metadata.partition_columns) != list(partition_by):
        raise RefusedError(
            f"{where} is partitioned by {metadata.partition_columns}, and the sink declares "
            f"partition_by={list(partition_by)}: declare the table's"
        )


def check_rewrites(table: DeltaTable, where: str, *, copies: bool) -> None:
    """Check that rows can be taken out of a table.

    :param where: sink and table, for messages
    :param copies: whether rows that stay are written anew
    :raises RefusedError: naming the property
    """
    configuration = table.metadata().configuration
    for name, reason in {**_APPEND_ONLY, **(_COPIES_ONLY if copies else {})}.items():
        if str(configuration.get(name)).lower() == "true":
            raise RefusedError(f"{where} has {name}={configuration[name]!r}: {reason}. Remove it, or use another table")


def check_whole_files(table: DeltaTable, where: str) -> None:
    """Check that the rows of a table's files are all that is in them.

    :param where: sink and table, for messages
    :raises RefusedError: naming the feature
    """
    protocol = table.protocol()
    if _VECTORS in {*(protocol.reader_features or ()), *(protocol.writer_features or ())}:
        raise RefusedError(
            f"{where} has the feature {_VECTORS}: rows of its files may be deleted beside them, which this sink can't "
            f"keep when it rewrites them. Drop it: ALTER TABLE … DROP FEATURE {_VECTORS}"
        )


def check_features(files: DeltaFiles, where: str) -> None:
    """Check the features in the log of a table that delta-rs can't open.

    :param files: the table's directory
    :raises RefusedError: naming the features that are the reason
    """
    for version in reversed(versions(files)):
        for kind, body in actions(files, version):
            if kind == "protocol":
                _check_known({*body.get("readerFeatures", ()), *body.get("writerFeatures", ())}, where)
                return


def _check_known(features: set[str], where: str) -> None:
    if unknown := sorted(features - _FEATURES):
        raise RefusedError(f"{where} has the features {', '.join(unknown)}, which this sink can't keep: use another")


def check_options(options: dict[str, str], where: str) -> None:
    """Check that of two writers of one version of the log one fails.

    :param options: those of delta-rs, and of its environment
    :raises RefusedError: naming the option
    """
    for name, value in options.items():
        if name.lower() in _UNSAFE and value.lower() in ("true", "1", "yes", "on", "y", "t"):
            raise RefusedError(
                f"{where}: {name}={value!r} lets two writers of one version of the log both succeed, and a killed run "
                "could overwrite its successor's commit. Leave it out"
            )
