"""Where the files of an Iceberg table are: a location is turned into a file system of Arrow's, and a path in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.tables.table_log import TableStore

#: Schemes in whose locations the container may be followed by its account: ``CONTAINER@ACCOUNT.dfs.core.windows.net``.
_OF_AZURE: Final = frozenset({"abfs", "abfss", "wasb", "wasbs"})
_ACCOUNT: Final = "adls.account-name"
#: How Arrow begins when it has no client of HDFS; each place where it has looked follows.
_NO_HDFS: Final = ("Unable to load lib", "Prior attempt to load lib")


@contextmanager
def reaching_hdfs(table: str) -> Iterator[None]:
    """Refuse a table on HDFS where there is no client of it.

    :param table: how people know it
    :raises RefusedError: naming the missing part
    """
    try:
        yield
    except OSError as error:
        if not str(error).startswith(_NO_HDFS):
            raise
        reason = str(error).partition("\n")[0]
        raise RefusedError(
            f"{table} is on HDFS, which pyiceberg reaches by Hadoop's libhdfs: {reason}. Install Hadoop where the "
            "driver and the tasks run, and set JAVA_HOME, HADOOP_HOME, and CLASSPATH to what `hadoop classpath --glob` "
            "prints"
        ) from None


class IcebergStore(TableStore):
    """The store that a table's files are in.

    :param properties: what pyiceberg needs to know of it
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties: Final = dict(properties)
        self._io: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_io": None}

    @override
    def open(self, path: str) -> Any:
        system, name = self.system(path)
        return system.open_input_file(name)

    @override
    def is_there(self, path: str) -> bool:
        from pyarrow.fs import FileType

        system, name = self.system(path)
        return bool(system.get_file_info(name).type != FileType.NotFound)

    def system(self, location: str) -> tuple[Any, str]:
        """Return the file system of a location, and its path there."""
        scheme, host, path = self._parsed(location)
        container, _, server = host.partition("@")
        if scheme in _OF_AZURE and server:
            self._io.properties.setdefault(_ACCOUNT, server.partition(".")[0])
            path = container + path.removeprefix(host)
        return self._io.fs_by_scheme(scheme, host), path

    def local(self, location: str) -> str | None:
        """Return the path on this machine, None for a location elsewhere."""
        scheme, _, path = self._parsed(location)
        return path if scheme == "file" else None

    def _parsed(self, location: str) -> tuple[str, str, str]:
        if self._io is None:
            from pyiceberg.io.pyarrow import PyArrowFileIO

            self._io = PyArrowFileIO(dict(self.properties))
        scheme, host, path = self._io.parse_location(location, self._io.properties)
        return scheme, host, path
