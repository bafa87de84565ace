"""The state directories of a Spark checkpoint: which operators have state, and which files hold the state of a version.

::

    state/<operator>/_metadata/metadata            the operator and its stores
    state/<operator>/_metadata/v2/<batch>          the same of transformWithState, rewritten at every start
    state/<operator>/_stateSchema/<store>/<file>   schemas, named by the entries of _metadata/v2 with absolute paths
    state/<operator>/<partition>/[<store>/]        a store; the one called default has no directory of its own
        _metadata/schema                           schemas of all others
        <version>.delta, <version>.snapshot        in memory, files on the checkpoint's file system ("hashmap")
        <version>.zip, SSTs/*.sst, logs/*.log      RocksDB; the zip names what else belongs to the version
        <version>.changelog                        RocksDB with changelog
        <version>_<id>.zip, <version>_<id>.zip.crc checkpoint format 2: commits/<batch> names the ids

The state after batch N is version N + 1: the newest zip or snapshot up to it, and every delta or changelog after that.
Names that begin with a dot are of Hadoop's local file system, and left out.
"""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint, whole
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.trees import bytes_of

DEFAULT_STORE: Final = "default"
#: Written under a new name and never changed, so that copies can share its bytes.
STATE_DATA: Final = re.compile(r"state/.*\.(sst|log|zip|changelog|delta|snapshot|crc)")
_VERSIONED: Final = re.compile(r"(\d+)(?:_([0-9A-Za-z-]+))?\.(zip|snapshot|delta|changelog)")
#: In the first state partition, the schemas of its stores.
_SCHEMA: Final = re.compile(r"(?:[^/]+/)?_metadata/schema")
#: What reading a zip with wrong bytes raises.
TORN_ZIP: Final = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)
_ID_BYTES: Final = 2  # a schema's number, before each in version 3
_BASES: Final = frozenset({"zip", "snapshot"})
#: What precedes ``state/<operator>/_stateSchema/…`` in an entry of ``_metadata/v2`` is where the checkpoint was then.
_SCHEMA_PATH: Final = re.compile(r'"[^"]*/(state/\d+/_stateSchema/[^"]+)"')
#: How many state partitions a batch has; what operators' metadata say was so when the query was started first.
SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"


@dataclass(frozen=True, kw_only=True)
class Defect:
    """One file of a checkpoint that isn't as it should be.

    :param path: relative to the checkpoint
    :param reason: a clause that follows the path in a sentence
    """

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


@dataclass(frozen=True, kw_only=True)
class StatefulOperator:
    """One operator of a query that keeps state.

    :param name: Spark's name for its kind, such as ``stateStoreSave`` or ``symmetricHashJoin``
    :param stores: names of the stores that each state partition has
    :param partitions: its state partitions
    :param keyed: whether its state has keys; without, it has one partition whatever the settings say
    :param schemas: {store or store/column family: (key schema, value schema)}, as Spark's JSON; empty where its schema
        files can't be read
    :param properties: what transformWithState says of itself, such as its ``stateVariables``
    """

    id: int
    name: str
    stores: tuple[str, ...]
    partitions: int
    keyed: bool = True
    schemas: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class FileSet:
    """Files that belong together, relative to the checkpoint, and their defects.

    :param sizes: bytes, of files with a size that another file records
    """

    files: set[str] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)
    defects: list[Defect] = field(default_factory=list)


class StateDirectory:
    """The directory ``state`` of a checkpoint.

    :param checkpoint: the checkpoint's directory
    """

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint: Final = checkpoint
        self._store: Final = store_of(checkpoint)

    def operators(self, batch: int) -> list[StatefulOperator]:
        """Return the stateful operators as of a batch.

        :raises ValueError: when an operator's metadata is not whole
        """
        partitions = self._partitions(batch)
        return [
            self._operator(number, file, partitions)
            for number in self._ids()
            if (file := self._metadata_file(number, batch))
        ]

    def needed(self, batch: int, state_ids: Mapping[int, Mapping[int, tuple[frozenset[str], ...]]]) -> FileSet:
        """Return the files of all state as of a batch.

        :param state_ids: {batch: what its commit tells of ids}, of as many batches as are known
        """
        needed, partitions = FileSet(), self._partitions(batch)
        for number in sorted({*self._ids(), *state_ids.get(batch, {})}):
            metadata = self._metadata_file(number, batch)
            if metadata is None:
                if number in state_ids.get(batch, {}) or self._has_partitions(number):
                    needed.defects.append(Defect(path=f"state/{number}/_metadata", reason="is missing"))
                continue  # else a start that failed left it behind
            needed.files.add(metadata)
            try:
                operator = self._operator(number, metadata, partitions)
            except ValueError as error:
                needed.defects.append(Defect(path=metadata, reason=f"is not whole: {error}"))
                continue
            for path in self._schema_files(number, metadata):
                if self._store.facts(self._checkpoint / path) is not None:
                    needed.files.add(path)
                else:
                    needed.defects.append(Defect(path=path, reason="is missing"))
            for partition in range(operator.partitions):
                ids = {
                    committed + 1: operator_ids[number][partition]
                    for committed, operator_ids in state_ids.items()
                    if partition < len(operator_ids.get(number, ()))
                }
                for store in operator.stores:
                    place = f"state/{number}/{partition}" + ("" if store == DEFAULT_STORE else f"/{store}")
                    _add_store(needed, self._checkpoint, place, batch + 1, ids)
        return needed

    def _ids(self) -> list[int]:
        return sorted(int(name) for name in self._store.names(self._checkpoint / "state") if name.isdecimal())

    def _partitions(self, batch: int) -> int | None:
        """Return how many state partitions a batch has, None when its offsets don't say."""
        offsets = whole(Checkpoint(self._checkpoint).offsets, batch)
        if offsets is None or SHUFFLE_PARTITIONS not in offsets.conf:
            return None
        return int(offsets.conf[SHUFFLE_PARTITIONS])

    def _has_partitions(self, operator: int) -> bool:
        return any(name.isdecimal() for name in self._store.names(self._checkpoint / "state" / str(operator)))

    def _metadata_file(self, operator: int, batch: int) -> str | None:
        """Return the metadata that holds for a batch, None when the operator has none."""
        place = f"state/{operator}/_metadata"
        batches = [int(name) for name in self._store.names(self._checkpoint / place / "v2") if name.isdecimal()]
        started = max((earlier for earlier in batches if earlier <= batch), default=None)
        if started is not None:
            return f"{place}/v2/{started}"
        path = f"{place}/metadata"
        return None if self._store.facts(self._checkpoint / path) is None else path

    def _operator(self, number: int, file: str, partitions: int | None) -> StatefulOperator:
        _, _, text = bytes_of(self._checkpoint / file).decode().partition("\n")
        body = json.loads(text)
        if not isinstance(body, dict):
            raise ValueError(f"{text[:40]!r} is no operator")
        try:
            stores = tuple(str(store["storeName"]) for store in body["stateStoreInfo"])
            schemas = self._schemas(number, file, stores)
            keyed = not schemas or any(_has_key(key) for key, _ in schemas.values())
            partitions = partitions or max(int(store["numPartitions"]) for store in body["stateStoreInfo"])
            return StatefulOperator(
                id=number,
                name=str(body["operatorInfo"]["operatorName"]),
                stores=stores,
                partitions=partitions if keyed else 1,
                keyed=keyed,
                schemas=schemas,
                properties=json.loads(body.get("operatorPropertiesJson") or "{}"),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"it lacks {error}") from error

    def _schema_files(self, operator: int, metadata: str) -> list[str]:
        """Return the schema files of an operator; a store's are named, or in its first partition."""
        text = bytes_of(self._checkpoint / metadata).decode()
        named = _SCHEMA_PATH.findall(text)
        if named:
            return sorted(set(named))
        first = f"state/{operator}/0"
        files = self._store.files(self._checkpoint / first)
        return [f"{first}/{path}" for path in files if _SCHEMA.fullmatch(path)]

    def _schemas(self, operator: int, metadata: str, stores: tuple[str, ...]) -> dict[str, tuple[str, str]]:
        schemas: dict[str, tuple[str, str]] = {}
        for path in self._schema_files(operator, metadata):
            store = next((name for name in stores if f"/{name}/" in path), DEFAULT_STORE)
            try:
                families = read_schemas(bytes_of(self._checkpoint / path))
            except (FileNotFoundError, ValueError):
                continue
            schemas |= {
                store if family == DEFAULT_STORE else f"{store}/{family}": pair for family, pair in families.items()
            }
        return schemas


@dataclass(frozen=True)
class _Versioned:
    version: int
    id: str | None
    kind: str
    name: str


def _add_store(needed: FileSet, checkpoint: Path, place: str, version: int, ids: Mapping[int, frozenset[str]]) -> None:
    """Add the files of a version of one store of one state partition.

    :param place: its directory, relative to the checkpoint
    :param ids: {version: ids that its files may have}; of a version that isn't in it, every file is taken
    """
    names = set(store_of(checkpoint).names(checkpoint / place))
    if not names:
        needed.defects.append(Defect(path=place, reason="is missing"))
        return
    matches = (match for name in sorted(names) if (match := _VERSIONED.fullmatch(name)))
    files = [
        file
        for file in (_Versioned(int(match[1]), match[2], match[3], match[0]) for match in matches)
        if file.version <= version and (file.id is None or file.id in ids.get(file.version, {file.id}))
    ]
    bases = [file for file in files if file.kind in _BASES]
    certain_bases = [file for file in bases if file.id is None or file.version in ids]
    if certain_bases:
        base = max(file.version for file in certain_bases)
        files = [file for file in files if file.version > base or (file.version == base and file.kind in _BASES)]
    else:  # its commit is forgotten, so it may be of an attempt that failed: all that is before it is taken, too
        base = max((file.version for file in bases), default=0)
    logs = {file.version for file in files if file.kind not in _BASES}
    missing = next((expected for expected in range(base + 1, version + 1) if expected not in logs), None)
    if missing is not None:
        kind = min({file.kind for file in files} - _BASES or {file.kind for file in files} or {"zip"})
        needed.defects.append(Defect(path=f"{place}/{missing}*.{kind}", reason="is missing"))
    for file in files:
        path = f"{place}/{file.name}"
        needed.files.add(path)
        if f"{file.name}.crc" in names:
            needed.files.add(f"{path}.crc")
        if file.kind == "zip":
            try:
                inner = {f"{place}/{name}": size for name, size in _zip_contents(checkpoint / path)}
            except (*TORN_ZIP, KeyError, TypeError, FileNotFoundError) as error:
                needed.defects.append(Defect(path=path, reason=f"is torn: {error}"))
            else:
                needed.files |= inner.keys()
                needed.sizes |= inner


def _zip_contents(file: Path) -> list[tuple[str, int]]:
    """Return the files that the zip of a RocksDB version refers to: (path in the store, bytes)."""
    with zipfile.ZipFile(io.BytesIO(bytes_of(file))) as archive:
        _, _, body = archive.read("metadata").decode().partition("\n")
    fields = json.loads(body)
    tables = [(f"SSTs/{entry['dfsSstFileName']}", int(entry["sizeBytes"])) for entry in fields["sstFiles"]]
    return tables + [
        (f"logs/{entry['dfsLogFileName']}", int(entry["sizeBytes"])) for entry in fields.get("logFiles") or []
    ]


def read_schemas(data: bytes) -> dict[str, tuple[str, str]]:
    """Read a state schema file of version 2 or 3; returns {column family: (key schema, value schema)}.

    :raises ValueError: when it is of another version or torn
    """
    try:
        version, position = _text(data, 0)
        families = {}
        if version == "v2":
            key, position = _long_text(data, position)
            value, position = _long_text(data, position)
            return {DEFAULT_STORE: (key, value)}
        if version != "v3":
            raise ValueError(f"a state schema of version {version!r}; v2 and v3 are read")
        (count,) = struct.unpack_from(">i", data, position)
        position += 4
        for _ in range(count):
            name, position = _text(data, position)
            key, position = _long_text(data, position + _ID_BYTES)
            value, position = _long_text(data, position + _ID_BYTES)
            for _ in range(2):  # how keys are encoded, and the schema of the user's values
                _, position = _long_text(data, position)
            families[name] = (key, value)
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"a torn state schema: {error}") from error
    return families


def _has_key(schema: str) -> bool:
    """Tell whether a key has a column with values: an aggregation without keys has none, a limit one that is void."""
    return any(column["type"] != "void" for column in json.loads(schema)["fields"])


def _long_text(data: bytes, position: int) -> tuple[str, int]:
    """Read a text that was cut into pieces short enough for writeUTF."""
    (count,) = struct.unpack_from(">i", data, position)
    position += 4
    pieces = []
    for _ in range(count):
        piece, position = _text(data, position)
        pieces.append(piece)
    return "".join(pieces), position


def _text(data: bytes, position: int) -> tuple[str, int]:
    """Read a text of Java's DataOutput.writeUTF."""
    (length,) = struct.unpack_from(">H", data, position)
    end = position + 2 + length
    if end > len(data):
        raise ValueError("a torn state schema")
    return data[position + 2 : end].decode(), end
