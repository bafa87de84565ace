"""The base of the schema registry's formats, which a user declares of a source or a sink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from airflow_provider_exactlyonce.exceptions import RefusedError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from airflow_provider_exactlyonce.streaming.registry.connection import RegistryAddress
    from airflow_provider_exactlyonce.streaming.registry.wire_format import WireDecoder

_SUBJECTS: Final = ("topic", "record", "topic_record")
LATEST: Final = "latest"


class Reader(Protocol):
    """Reads values of any schemas that the registry knows; pickled to the tasks."""

    def open(self) -> WireDecoder:
        """Return the decoder of the values, the same one in all tasks of a process."""


class Writer(Protocol):
    """Writes values with one schema."""

    @property
    def name(self) -> str:
        """The full name of the record that a value is."""

    def check(self, values: DataFrame) -> None:
        """Compare the columns with the schema.

        :raises RefusedError: when they can't be written with it
        """

    def encode(self, value: Column, schema_id: int) -> Column:
        """Return the value's bytes in the wire format.

        :param value: a struct
        """


@dataclass(frozen=True)
class RegistryFormat(ABC):
    """Values in the wire format of schema registries; :class:`AvroFormat` and :class:`ProtobufFormat` are such formats.

    :raises RefusedError: when the values do not go together
    """

    schema: str | None = None
    schema_id: int | None = None
    _: KW_ONLY
    subject: str = field(default="topic", repr=False)  # the version of a pipeline without them stays
    register: bool = field(default=True, repr=False)

    #: What registries call it.
    kind: ClassVar[str]

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.subject not in _SUBJECTS:
            raise RefusedError(f"{name}(subject={self.subject!r}): {', '.join(_SUBJECTS)}")
        if self.schema == LATEST and self.subject != "topic":
            raise RefusedError(f"{name}('latest', subject={self.subject!r}): the record is not known before; 'topic'")
        if self.schema_id is not None and self.schema in (None, LATEST):
            raise RefusedError(f"{name}(schema_id={self.schema_id}): the id is of a schema, which it needs, too")
        if self.schema_id is not None and not 0 <= self.schema_id < 2**31:
            raise RefusedError(f"{name}(schema_id={self.schema_id}): 0 to {2**31 - 1}")

    def __str__(self) -> str:
        return repr(self) if self.subject == "topic" else f"{self!r}, subject {self.subject}"

    @property
    def names_topic(self) -> bool:
        """Whether a sink's subject is named after its topic."""
        return self.schema_id is None and self.subject != "record"

    @abstractmethod
    def columns(self) -> str | None:
        """Return the columns of a source that reads records as the schema, in DDL; None when it names no schema.

        :raises RefusedError: when no columns fit the schema
        """

    @abstractmethod
    def reader(self, columns: str, address: RegistryAddress) -> Reader:
        """Return the reader of a source's values.

        :param columns: of the stream, in DDL
        :raises RefusedError: when the format has no type for a column
        """

    @abstractmethod
    def writer(self, schema: str, imports: Mapping[str, str]) -> Writer:
        """Return the writer of a sink's values.

        :param imports: the schemas that it refers to, by name
        :raises RefusedError: when it is no schema
        """

    @abstractmethod
    def schema_of(self, columns: str, name: str, latest: Callable[[], Writer | None]) -> str:
        """Return the schema of a record that has a table's columns.

        :param columns: in DDL
        :param name: of the record
        :param latest: returns what writes with the subject's latest schema, None when there is none
        :raises RefusedError: when the format has no type for a column
        """
