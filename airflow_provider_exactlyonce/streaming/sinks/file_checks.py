"""Checks of the declaration and of the rows' columns, for sinks that write Parquet files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.exceptions import RefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import StructType

#: Of Parquet, as pyarrow calls them.
CODECS: Final = ("zstd", "snappy", "gzip", "lz4", "none")
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_ESCAPED: Final = re.compile(r"%[0-9A-Fa-f]{2}|\\")
#: What is before the host; of Azure's it is a container, without a colon.
_SECRET_IN_URL: Final = re.compile(r"(?!(abfss?|wasbs?)://[^/:]*@)[^/]*://[^/]*@")
_NO_PARQUET: Final = ("variant", "void", "interval", "daytimeinterval", "yearmonthinterval", "time", "geometry")
_NO_DIRECTORY: Final = ("array", "map", "struct", "binary", "float", "double", "timestamp")
_LEAST_FILE_BYTES: Final = 2**20


def check_format(kind: str, compression: str, max_file_bytes: int) -> None:
    """Check how a sink's files are to be written.

    :param kind: the sink's class, for messages
    :raises RefusedError: naming the parameter, its value and what is accepted
    """
    if compression not in CODECS:
        raise RefusedError(f"{kind}(compression={compression!r}): one of {', '.join(CODECS)}")
    if not _is_whole(max_file_bytes) or max_file_bytes < _LEAST_FILE_BYTES:
        raise RefusedError(
            f"{kind}(max_file_bytes={max_file_bytes!r}): a number of bytes, at least 1 MiB, {_LEAST_FILE_BYTES}"
        )


def check_compaction(kind: str, compact_every: int | None) -> None:
    """Check how often a sink's small files are to be written together.

    :param kind: the sink's class, for messages
    :raises RefusedError: naming the parameter, its value and what is accepted
    """
    if compact_every is not None and not (_is_whole(compact_every) and compact_every >= 1):
        raise RefusedError(f"{kind}(compact_every={compact_every!r}): a number of commits, at least 1")


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def check_place(kind: str, name: str, path: str) -> None:
    """Check a sink's name and path.

    :param kind: the sink's class, for messages
    :raises RefusedError: naming the parameter, its value and what is accepted
    """
    check_name(kind, name)
    if has_secret(path):
        raise RefusedError(f"{kind}(name={name!r}): path has credentials in it; give them in storage_options")
    if not path.startswith("/") and "://" not in path:
        raise RefusedError(f"{kind}(path={path!r}) is neither an absolute path nor a URL")


def check_plain(kind: str, path: str) -> None:
    """Check that a path means the same to delta-rs: of this machine it takes ``%20`` for a space.

    :param kind: the sink's or the source's class, for messages
    :raises RefusedError: when it does not
    """
    scheme, _, place = path.partition("://")
    if scheme in ("wasb", "wasbs"):
        raise RefusedError(
            f"{kind}(path={path!r}): delta-rs knows no {scheme}://; write abfss://{place.replace('.blob.', '.dfs.', 1)}"
        )
    is_local = "://" not in path or path.startswith("file://")
    if is_local and (match := _ESCAPED.search(path)):
        raise RefusedError(f"{kind}(path={path!r}): delta-rs takes {match[0]!r} for another character: rename it")


def has_secret(path: str) -> bool:
    """Tell whether a URL has credentials in it, which would be shown wherever it is."""
    return _SECRET_IN_URL.match(path) is not None


def check_name(kind: str, name: str) -> None:
    """Check a sink's name.

    :param kind: the sink's class, for messages
    :raises RefusedError: naming its value and what is accepted
    """
    if not _NAME.fullmatch(name):
        raise RefusedError(f"{kind}(name={name!r}): lower-case letters, digits, - and _, at most 63")


def check_partitions(columns: StructType, partition_by: Sequence[str], where: str) -> None:
    """Check that columns can name directories.

    :param where: the sink, for messages
    :raises RefusedError: naming the column and its type
    """
    kinds = {field.name: field.dataType.simpleString() for field in columns.fields}
    for name in partition_by:
        if name not in kinds:
            raise RefusedError(f"{where}: partition_by names {name!r}; the columns are {', '.join(kinds)}")
        if kinds[name].startswith(_NO_DIRECTORY):
            raise RefusedError(
                f"{where}: column {name!r} of partition_by is {kinds[name]}; a directory is named by a "
                "string, an integer, a decimal, a boolean or a date. Derive such a column"
            )


def check_parquet(columns: StructType, where: str) -> None:
    """Check that columns can be written as Parquet and read back by others.

    :param where: the sink, for messages
    :raises RefusedError: naming the column and its type
    """
    if not columns.fields:
        raise RefusedError(f"{where}: the result has no columns")
    _check_differ("columns", columns.names, where)
    for field in columns.fields:
        _check_type(field.name, field.dataType, where)


def _check_differ(subject: str, names: Sequence[str], where: str) -> None:
    """Check that names stay different where case does not count."""
    seen: dict[str, str] = {}
    for name in names:
        if (twin := seen.get(name.lower())) is not None:
            alike = "are called the same" if twin == name else "differ in case only"
            raise RefusedError(f"{where}: {subject} {twin!r} and {name!r} {alike}; Spark can't read them: rename one")
        seen[name.lower()] = name


def _check_type(name: str, kind: Any, where: str) -> None:
    """Check a column's type, and those that it is made of."""
    if kind.typeName().partition("(")[0] in _NO_PARQUET:
        raise RefusedError(
            f"{where}: column {name!r} has the type {kind.simpleString()}, on which readers of Parquet don't agree; "
            "cast it to a string or a number"
        )
    _check_differ(f"the fields of column {name!r},", getattr(kind, "names", ()), where)
    parts = [getattr(kind, part) for part in ("elementType", "keyType", "valueType") if hasattr(kind, part)]
    for part in (*parts, *(field.dataType for field in getattr(kind, "fields", ()))):
        _check_type(name, part, where)
