"""Where a pipeline's state lives while it runs, and the form of its files in the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from airflow_provider_exactlyonce.checkpoint.manifest import backend_of
from airflow_provider_exactlyonce.exceptions import RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.streaming import settings

_PREFIX: Final = "spark.sql.streaming.stateStore."
PROVIDER: Final = f"{_PREFIX}providerClass"
_FORMAT: Final = f"{_PREFIX}checkpointFormatVersion"
_ENCODING: Final = f"{_PREFIX}encodingFormat"
AVRO: Final = "avro"
_PACKAGE: Final = "org.apache.spark.sql.execution.streaming.state."


@dataclass(frozen=True, kw_only=True)
class StateBackend:
    """A state backend; made by :meth:`hashmap` or :meth:`rocksdb`.

    :param name: ``hashmap`` or ``rocksdb``
    :param conf: the Spark settings that make it
    """

    name: str
    conf: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def hashmap(cls) -> Self:
        """Return state on the executors' heap, and deltas and snapshots of it in the checkpoint.

        Every state partition has to fit into memory. transformWithState and a change of the number of state partitions
        need RocksDB.
        """
        return cls(name="hashmap", conf={PROVIDER: f"{_PACKAGE}HDFSBackedStateStoreProvider", _FORMAT: "1"})

    @classmethod
    def rocksdb(
        cls,
        *,
        changelog: bool = False,
        avro: bool = False,
        memory_megabytes: int | None = None,
        write_buffer_share: float | None = None,
    ) -> Self:
        """Return state in RocksDB on the executors' disks, and its tables in the checkpoint.

        :param changelog: a batch writes what it has changed, and the tables follow in the background: shorter commits
            of large state, longer starts
        :param avro: state of keyed functions, and of transformWithState, is encoded in Avro, so that a later version
            may add fields to it; a lineage keeps the encoding that it began with
        :param memory_megabytes: what all RocksDB instances of one executor may use together, None for no limit
        :param write_buffer_share: how much of that is for writing, between 0 and 1; None for Spark's default, a half
        :raises RefusedError: when a limit can't be
        """
        if memory_megabytes is not None and memory_megabytes < 1:
            raise RefusedError(f"StateBackend.rocksdb(memory_megabytes={memory_megabytes}): at least 1")
        if write_buffer_share is not None and (memory_megabytes is None or not 0 < write_buffer_share < 1):
            raise RefusedError(
                f"StateBackend.rocksdb(write_buffer_share={write_buffer_share}): between 0 and 1, and only together "
                "with memory_megabytes, of which it is a share"
            )
        conf = {
            PROVIDER: f"{_PACKAGE}RocksDBStateStoreProvider",
            _FORMAT: "2",
            f"{_PREFIX}rocksdb.changelogCheckpointing.enabled": str(changelog).lower(),
        }
        if avro:
            conf[_ENCODING] = AVRO
        if memory_megabytes is not None:
            conf[f"{_PREFIX}rocksdb.boundedMemoryUsage"] = "true"
            conf[f"{_PREFIX}rocksdb.maxMemoryUsageMB"] = str(memory_megabytes)
        if write_buffer_share is not None:
            conf[f"{_PREFIX}rocksdb.writeBufferCacheRatio"] = str(write_buffer_share)
        return cls(name="rocksdb", conf=conf)

    @property
    def encoding(self) -> str | None:
        """How state of keyed functions is encoded, None for whatever a lineage began with, or Spark's own."""
        return self.conf.get(_ENCODING)

    def settings(self, get: Callable[[str], str | None]) -> Mapping[str, str]:
        """Return the Spark settings to make.

        :param get: returns a setting as it was given at submit, None when it was not
        :raises SettingRefusedError: when one was given that contradicts
        """
        for name, value in self.conf.items():
            given = get(name)
            if given not in (None, value, settings.DEFAULTS.get(name)):
                raise SettingRefusedError(name, given, value, f"the pipeline says state_backend={self.name}")
        return self.conf

    def check_lineage(self, lineage: str, conf: Mapping[str, str]) -> None:
        """Check that a lineage's state is in this backend: Spark would silently stay with the lineage's own.

        :param conf: the settings in the lineage's newest offsets; empty before the first batch
        :raises RefusedError: when it is in another one
        """
        backend = backend_of(conf, ()) if PROVIDER in conf else self.name
        if backend != self.name:
            raise RefusedError(
                f"lineage {lineage} has its state in {backend}, and the pipeline says state_backend={self.name}. State "
                f"can't be carried from one backend to another: say state_backend=StateBackend.{backend}(), or give "
                "the changed pipeline a new name and a new home, where it builds its state from its sources again"
            )
        if PROVIDER in conf and self.encoding == AVRO != conf.get(_ENCODING):
            raise RefusedError(
                f"lineage {lineage} did not begin with state in Avro, and Spark would silently stay without: leave "
                "avro=True out of StateBackend.rocksdb(), or give the pipeline a new name and a new home, where it "
                "builds its state from its sources again"
            )
